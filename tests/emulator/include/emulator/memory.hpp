// mbarriers, tensor maps and TMA.
#pragma once

#include "emulator/cta.hpp"

namespace emulator {

inline uint32_t shared_address(void const* p) {
  ptrdiff_t const offset = static_cast<uint8_t const*>(p) - comfuse::sm90::memory;
  if (offset < 0 || offset >= machine.shared_bytes) fail("byte %ld is not in shared memory", long(offset));
  return uint32_t(offset) + kSharedBase;
}
inline uint8_t* shared_byte(uint32_t address) {
  if (address < kSharedBase || address >= kSharedBase + uint32_t(machine.shared_bytes))
    fail("address %u is not in shared memory", address);
  return comfuse::sm90::memory + address - kSharedBase;
}
// The 128-byte swizzle, which TMA writes and wgmma reads: of an address, not of an offset.
inline uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

// ---- mbarriers
inline Mbarrier& mbarrier(uint64_t const* word) {
  auto const found = machine.mbarriers.find(word);
  if (found == machine.mbarriers.end()) fail("an mbarrier that was not initialised");
  if (*word != kMbarrierWord) fail("something wrote over an mbarrier");
  return found->second;
}
inline void complete_if_done(Mbarrier& b) {
  if (b.pending > 0 || b.bytes != 0) return;
  b.pending = b.count;
  ++b.phase;
  wake(b.waiting);
}

struct Barrier {
  static void init(uint64_t const* word, int count) {
    shared_address(word);
    if (uintptr_t(word) % 8 != 0) fail("an mbarrier is not aligned");
    if (!machine.mbarriers.emplace(word, Mbarrier{count, count}).second)
      fail("an mbarrier is initialised twice");
    *const_cast<uint64_t*>(word) = kMbarrierWord;
  }
  static bool try_wait(uint64_t const* word, uint32_t parity) {
    while ((mbarrier(word).phase & 1) == parity) {
      mbarrier(word).waiting.push_back(&self());
      block("an mbarrier");
    }
    return true;
  }
  static void arrive(uint64_t const* word) { arrive_and_expect_tx(word, 0); }
  static void arrive(uint64_t const* word, uint32_t, uint32_t) { arrive(word); }
  static void arrive_and_expect_tx(uint64_t const* word, uint32_t bytes) {
    Mbarrier& b = mbarrier(word);
    if (b.pending == 0) fail("one arrival too many at an mbarrier of %d", b.count);
    if (bytes >= 1 << 20) fail("an mbarrier cannot count %u bytes", bytes);
    b.bytes += bytes;
    --b.pending;
    complete_if_done(b);
    give_way();
  }
};

// ---- tensor maps: what cuTensorMapEncodeTiled is told, as it stands in the 128 bytes
struct TensorMap {
  uint64_t base, sizes[5], strides[4];
  uint32_t box[5], rank, element, swizzled;
};
static_assert(sizeof(TensorMap) <= 128);

inline bool is_legal(TensorMap const& t) {
  bool legal = t.base % 16 == 0 && t.rank >= 1 && t.rank <= 5 && t.box[0] * t.element % 16 == 0 &&
               (!t.swizzled || t.box[0] * t.element <= 128);
  for (uint32_t i = 0; i < t.rank; ++i)
    legal = legal && t.sizes[i] >= 1 && t.sizes[i] <= 1ull << 32 && t.box[i] >= 1 && t.box[i] <= 256;
  for (uint32_t i = 0; i + 1 < t.rank; ++i)
    legal = legal && t.strides[i] % 16 == 0 && t.strides[i] < 1ull << 40;
  return legal;
}

// ---- reads of shared memory, which TMA may overtake unless a fence of the proxies follows them
inline void note_read(uint32_t address) {
  ++machine.readers[address / 16];
  self().read.push_back(address / 16);
}
inline void proxy_fence() {
  for (uint32_t unit : self().read) --machine.readers[unit];
  self().read.clear();
}

// A box, element by element: what lies outside the tensor is zero, and counts as bytes all the same.
inline void load_box(TensorMap const& t, uint32_t to, int const (&corner)[5]) {
  uint32_t at[5] = {}, address = to;
  for (;;) {
    bool inside = true;
    uint64_t from = t.base;
    for (uint32_t i = 0; i < t.rank; ++i) {
      int64_t const x = int64_t(corner[i]) + at[i];
      inside = inside && x >= 0 && uint64_t(x) < t.sizes[i];
      from += uint64_t(x) * (i == 0 ? t.element : t.strides[i - 1]);
    }
    uint32_t const place = t.swizzled ? swizzled(address) : address;
    auto const found = machine.readers.find(place / 16);
    if (found != machine.readers.end() && found->second > 0) fail("TMA overtakes a read: no proxy fence");
    uint8_t* const byte = shared_byte(place);
    if (inside)
      memcpy(byte, reinterpret_cast<void const*>(from), t.element);
    else
      memset(byte, 0, t.element);
    address += t.element;
    uint32_t i = 0;
    while (i < t.rank && ++at[i] == t.box[i]) at[i++] = 0;
    if (i == t.rank) return;
  }
}

template <int Rank>
struct TmaLoad {
  template <class... Coordinate>
  static void copy(void const* map, uint64_t* word, uint64_t, void* to, Coordinate... coordinate) {
    static_assert(sizeof...(Coordinate) == Rank);
    TensorMap t;
    memcpy(&t, map, sizeof t);
    if (t.rank != Rank) fail("a load of rank %d from a tensor map of rank %u", Rank, t.rank);
    uint32_t const address = shared_address(to);
    if (address % (t.swizzled ? 1024 : 128) != 0) fail("TMA writes to %u, which is not aligned", address);
    std::vector<int> const corner{int(coordinate)...};
    machine.transfers.push_back([=] {
      int all[5] = {};
      uint32_t bytes = t.element;
      for (int i = 0; i < Rank; ++i) all[i] = corner[i], bytes *= t.box[i];
      load_box(t, address, all);
      Mbarrier& b = mbarrier(word);
      b.bytes -= bytes;
      complete_if_done(b);
    });
  }
};
struct TmaLoadOfAnyRank {
  template <class... Coordinate>
  static void copy(void const* map, uint64_t* word, uint64_t hint, void* to, Coordinate... coordinate) {
    TmaLoad<sizeof...(Coordinate)>::copy(map, word, hint, to, coordinate...);
  }
};

}  // namespace emulator
