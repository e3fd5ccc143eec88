// The PTX of the device headers: `rewrite.py` makes a call of one of these of every asm statement, with its
// operands in order.
#pragma once

#include <limits>

#include "emulator/scheduler.hpp"
#include "emulator/tensor_core.hpp"

namespace emulator {

// asm("" : "=f"(x)): whatever x was is of no account.
inline void forget(float& x) { x = NAN; }
template <class... X>
void nothing(X const&...) {}
template <class... X>
void not_emulated(X const&...) {
  fail("an instruction that is not emulated");
}
template <class X>
void illegal_address(X const&) {
  fail("gave up waiting");
}

template <class X>
void cvt_bf16x2(uint32_t& d, X high, X low) {
  d = uint32_t(bf16_of(high)) << 16 | bf16_of(low);
}
template <class X>
void cvt_f16x2(uint32_t& d, X high, X low) {
  d = uint32_t(fp16_of(high)) << 16 | fp16_of(low);
}

// Two bytes, `low` in the lowest, in front of those of `rest`.
template <class Byte>
uint32_t packed_bytes(int32_t high, int32_t low, uint32_t rest) {
  auto const byte = [](int32_t x) {
    return uint32_t(
               std::clamp<int32_t>(x, std::numeric_limits<Byte>::min(), std::numeric_limits<Byte>::max())) &
           0xff;
  };
  return rest << 16 | byte(high) << 8 | byte(low);
}
inline void cvt_pack_s8(uint32_t& d, int32_t high, int32_t low, uint32_t rest = 0) {
  d = packed_bytes<int8_t>(high, low, rest);
}
inline void cvt_pack_u8(uint32_t& d, int32_t high, int32_t low, uint32_t rest = 0) {
  d = packed_bytes<uint8_t>(high, low, rest);
}
inline void cvt_f16x2_of_e4m3x2(uint32_t& d, uint16_t bytes) {
  auto const half = [](uint32_t byte) {
    uint32_t const exponent = byte >> 3 & 15, mantissa = byte & 7;
    float const x = (byte & 0x7f) == 0x7f ? NAN
                    : exponent            ? ldexpf(float(mantissa + 8), int(exponent) - 10)
                                          : ldexpf(float(mantissa), -9);
    return uint32_t(fp16_of(byte & 0x80 ? -x : x));
  };
  d = half(bytes >> 8) << 16 | half(bytes & 0xff);
}

inline void grid_size(int& size) { size = int(gridDim.x); }
inline void bar_sync(int id, int count) { named_barrier(id, count, true); }
inline void bar_sync_1(int count) { named_barrier(1, count, true); }
inline void bar_arrive(int id, int count) { named_barrier(id, count, false); }

// ---- words that CTAs share
inline void atomic_inc(uint32_t& before, uint32_t* counter, uint32_t last) {
  before = *counter;
  *counter = before >= last ? 0 : before + 1;
  note_event();
  give_way();
}
inline void reduce_inc(uint32_t* counter, uint32_t last) {
  uint32_t before;
  atomic_inc(before, counter, last);
}
inline void store_shared_word(uint64_t* p, uint64_t word) {
  *p = word;
  note_event();
  give_way();
}
template <class Word>
void load_shared_word(Word& word, Word const* p) {
  self().seen = machine.events;
  word = *p;
}

// ---- predicated accesses to global memory
template <class P>
void check_aligned(P p, unsigned bytes) {
  if (uintptr_t(p) % bytes != 0) fail("an access to global memory that is not aligned to %u bytes", bytes);
}
template <class P>
void load_v4(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, P p, int condition) {
  if (!condition) return;
  check_aligned(p, 16);
  auto const* from = reinterpret_cast<uint32_t const*>(p);
  a = from[0], b = from[1], c = from[2], d = from[3];
}
template <class P>
void load_v2(uint32_t& a, uint32_t& b, P p, int condition) {
  if (!condition) return;
  check_aligned(p, 8);
  auto const* from = reinterpret_cast<uint32_t const*>(p);
  a = from[0], b = from[1];
}
template <class Word, class P>
void load_word(uint32_t& a, P p, int condition) {
  if (!condition) return;
  check_aligned(p, sizeof(Word));
  Word word;
  memcpy(&word, p, sizeof word);
  a = word;
}
template <class P>
void store_v4(P p, uint32_t a, uint32_t b, uint32_t c, uint32_t d, int condition) {
  end_reads();
  if (!condition) return;
  check_aligned(p, 16);
  uint32_t const words[4] = {a, b, c, d};
  memcpy(p, words, 16);
}
template <class P>
void store_v2(P p, uint32_t a, uint32_t b, int condition) {
  end_reads();
  if (!condition) return;
  check_aligned(p, 8);
  uint32_t const words[2] = {a, b};
  memcpy(p, words, 8);
}
template <class Word, class P>
void store_word(P p, uint32_t a, int condition) {
  end_reads();
  if (!condition) return;
  check_aligned(p, sizeof(Word));
  Word const word = Word(a);
  memcpy(p, &word, sizeof word);
}

}  // namespace emulator
