// A fragment: 32 columns of the 2 x 8 rows that a wgmma accumulator spreads over a warp, and which of its
// values a thread holds.
//
// It holds 16, v[4 j + 2 half + e], all of row 8 half + lane / 4.  As wgmma deals them these are pairs: with
// q = lane % 4, v[...] is of column 8 j + 2 q + e.  Where B's rows are permuted (mainloop.hpp), or
// accumulators traded, it is a run of eight: column 8 q + 2 j + e.
#pragma once

#include "comfuse/blocks.hpp"
#include "comfuse/sm90/instructions.hpp"
#include "comfuse/sm90/slot_layout.hpp"

namespace comfuse::sm90 {

constexpr int kFragmentColumns = 32, kFragmentValues = 16;

struct Fragment {
  float v[kFragmentValues];

  // The i-th of the thread's eight columns.
  CF_DEVICE float& at(int half, int i) { return v[4 * (i / 2) + 2 * half + i % 2]; }
  CF_DEVICE float at(int half, int i) const { return v[4 * (i / 2) + 2 * half + i % 2]; }
};
CF_DEVICE int first_column_of_thread() { return 8 * (lane_id() % 4); }
CF_DEVICE int first_pair_of_thread() { return 2 * (lane_id() % 4); }

namespace detail {

// Of each half, the eight elements in the order of the thread's columns.
template <class T>
CF_DEVICE Fragment unpack_halves_of_fragment(Block<T> const (&blocks)[2]) {
  Fragment f;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float run[8];
    unpack(blocks[half], run);
#pragma unroll
    for (int i = 0; i < 8; ++i) f.at(half, i) = run[i];
  }
  return f;
}

// ---- pairs
// Two neighbouring elements, from memory aligned to both.
template <class T>
CF_DEVICE void load_pair(T const* p, float& first, float& second) {
  struct alignas(2 * sizeof(T)) Pair {
    T first, second;
  };
  Pair const pair = *reinterpret_cast<Pair const*>(p);
  first = to_float(pair.first), second = to_float(pair.second);
}
#ifdef __CUDACC__
CF_DEVICE void load_pair(bf16 const* p, float& first, float& second) {
  uint32_t const word = *reinterpret_cast<uint32_t const*>(p);
  first = __uint_as_float(word << 16), second = __uint_as_float(word & 0xffff0000u);
}
#endif
// Of a value a column; `x`: that of the fragment's first column.
template <class T>
CF_DEVICE Fragment pairs_of_vector(T const* x) {
  Fragment f;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    load_pair(x + 8 * j + first_pair_of_thread(), f.v[4 * j], f.v[4 * j + 1]);
    f.v[4 * j + 2] = f.v[4 * j], f.v[4 * j + 3] = f.v[4 * j + 1];
  }
  return f;
}
// The columns' numbers; `first`: that of the fragment's first column.
CF_DEVICE Fragment numbers_of_pairs(int first) {
  Fragment f;
#pragma unroll
  for (int n = 0; n < kFragmentValues; ++n)
    f.v[n] = float(first + n / 4 * 8 + first_pair_of_thread() + n % 2);
  return f;
}
// From a swizzled slot; `row`: the first of the warp's 16 there, a multiple of 16.  An 8 x 8 matrix of
// ldmatrix gives a thread the pair 2 q, 2 q + 1 of row lane / 4; the four are those of j = 0 .. 3.
template <class T>
CF_DEVICE Fragment pairs_of_slot(uint8_t const* slot, int row) {
  static_assert(sizeof(T) == 2);
  uint8_t const* const from = slot + swizzled_offset(row + lane_id() % 8, lane_id() / 8);
  Block<T> blocks[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) load_matrices(blocks[half].words, from + half * 8 * kSlotRowBytes);
  return unpack_halves_of_fragment(blocks);
}

}  // namespace detail
}  // namespace comfuse::sm90
