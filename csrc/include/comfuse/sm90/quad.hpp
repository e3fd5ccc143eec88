// The four threads of a quad hold the same rows of a tile, two or four of them, and split what there is to
// do for each: thread q owns one row.
#pragma once

#include "comfuse/sm90/instructions.hpp"

namespace comfuse::sm90 {

// A warpgroup's 64-row fragments: a thread has two rows in each.
template <int Fragments>
struct Quad {
  static constexpr int kRows = 2 * Fragments;

  // With two rows for four threads, threads q and q + 2 own the same one; the lower stores it.
  CF_DEVICE static bool owns() { return Fragments == 2 || lane_id() % 4 < 2; }
  // Relative to the first of the warp's rows.
  CF_DEVICE static int owned_row() {
    int const q = lane_id() % 4;
    return (Fragments == 2 ? (q / 2) * 64 : 0) + (q % 2) * 8 + lane_id() / 4;
  }

  // Every thread gets what the owners of its rows have.
  CF_DEVICE static void broadcast(float value, float (&rows)[kRows]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) rows[r] = __shfl_sync(kFullWarp, value, lane_id() / 4 * 4 + r);
  }

  // Four threads hold parts of each of the rows; thread q ends with the whole of the row it owns.
  // `count(q)`: how many columns thread q's parts are of.
  template <class Monoid, class Count>
  CF_DEVICE static typename Monoid::State reduce(typename Monoid::State const (&rows)[kRows],
                                                 Count const& count) {
    using State = typename Monoid::State;
    int const q = lane_id() % 4;
    auto merge = [](State const& mine, State const& partner, int mask, float own, float others) {
      return Monoid::merge(mine, partner.shuffle_xor(mask), own, others);
    };
    if constexpr (Fragments == 2) {
      bool const high = q & 2, odd = q & 1;
      State const a =
          merge(select(high, rows[2], rows[0]), select(high, rows[0], rows[2]), 2, count(q), count(q ^ 2));
      State const b =
          merge(select(high, rows[3], rows[1]), select(high, rows[1], rows[3]), 2, count(q), count(q ^ 2));
      return merge(select(odd, b, a), select(odd, a, b), 1, count(q) + count(q ^ 2),
                   count(q ^ 1) + count(q ^ 3));
    } else {
      bool const odd = q & 1;
      State const a =
          merge(select(odd, rows[1], rows[0]), select(odd, rows[0], rows[1]), 1, count(q), count(q ^ 1));
      return merge(a, a, 2, count(q) + count(q ^ 1), count(q ^ 2) + count(q ^ 3));
    }
  }

 private:
  template <class State>
  CF_DEVICE static State select(bool condition, State const& a, State const& b) {
    return condition ? a : b;
  }
};

}  // namespace comfuse::sm90
