// Column reductions within a warp.  Its 32 lanes hold eight columns each of a fragment's 32; the eight lanes
// with the same lane % 4 hold the same eight, in different rows.
#pragma once

#include "comfuse/sm90/monoids.hpp"

namespace comfuse::sm90 {

// What a lane has of one column's rows.  Unlike States, the lanes' partial results merge without counts,
// which would be many registers where rows end within a tile.
template <class Monoid>
struct ColumnPartial {
  typename Monoid::Thread thread;
  // `warps_first`: the value in the first of all the rows that the warp has, the same for all lanes.
  CF_DEVICE void begin(float /*warps_first*/) { thread = typename Monoid::Thread{}; }
  CF_DEVICE void add(float x) { thread.add(x, false, 0); }
  CF_DEVICE ColumnPartial shuffle_xor(int mask) const {
    return {{{}, thread.finish(0.f).shuffle_xor(mask).value}};
  }
  CF_DEVICE void merge(ColumnPartial const& other) {
    thread.value = Monoid::merge(thread.finish(0.f), other.thread.finish(0.f), 0.f, 0.f).value;
  }
  CF_DEVICE typename Monoid::State finish(float count) const { return thread.finish(count); }
};
// Shifted sums, all by the same summand, simply add (monoids.hpp).
template <>
struct ColumnPartial<Welford> {
  float shift, sum, squares;
  CF_DEVICE void begin(float warps_first) { shift = warps_first, sum = squares = 0.f; }
  CF_DEVICE void add(float x) {
    float const d = x - shift;
    sum += d;
    squares = fmaf(d, d, squares);
  }
  CF_DEVICE ColumnPartial shuffle_xor(int mask) const {
    return {shift, __shfl_xor_sync(kFullWarp, sum, mask), __shfl_xor_sync(kFullWarp, squares, mask)};
  }
  CF_DEVICE void merge(ColumnPartial const& other) { sum += other.sum, squares += other.squares; }
  CF_DEVICE Welford::State finish(float count) const {
    // A warp whose rows all lie beyond the matrix: what it took for a first value is none.
    if (count == 0.f) return {0.f, 0.f};
    return Welford::Thread{{}, shift, sum, squares}.finish(count);
  }
};

// Of the 32 columns, the one whose partial result a lane ends with.
template <bool kPairs>
CF_DEVICE int column_after_scatter() {
  int const q = lane_id() % 4, i = lane_id() / 4;
  return kPairs ? 8 * (i / 2) + 2 * q + i % 2 : 8 * q + i;
}

// A lane and its partner, `Distance` rows away, hold 2 * Distance columns each and keep half of them.
template <int Distance, class Partial>
CF_DEVICE void exchange(Partial (&columns)[8]) {
  bool const high = lane_id() / 4 & Distance;
#pragma unroll
  for (int c = 0; c < Distance; ++c) {
    Partial const given = high ? columns[c] : columns[c + Distance];
    columns[c] = high ? columns[c + Distance] : columns[c];
    columns[c].merge(given.shuffle_xor(4 * Distance));
  }
}
// The eight columns, merged over the eight lanes that have them: each lane ends with one, after 4 + 2 + 1
// exchanges instead of three for each column.
template <class Partial>
CF_DEVICE Partial reduce_scatter(Partial (&columns)[8]) {
  exchange<4>(columns);
  exchange<2>(columns);
  exchange<1>(columns);
  return columns[0];
}

// The States of all lanes, merged into one.
template <class Monoid>
CF_DEVICE typename Monoid::State reduce_warp(typename Monoid::State state, float count) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    float const others = __shfl_xor_sync(kFullWarp, count, mask);
    state = Monoid::merge(state, state.shuffle_xor(mask), count, others);
    count += others;
  }
  return state;
}

}  // namespace comfuse::sm90
