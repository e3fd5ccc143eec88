// Reduces a row as a kernel does: threads over runs of eight columns, quads, words, tiles.
#include "comfuse/sm90/monoids.hpp"

namespace cf = comfuse;

constexpr int kTile = 64;

int columns_of_thread(int q, int columns) {
  int count = 0;
  for (int column = 8 * q; column < columns; column += 32)
    count += columns - column < 8 ? columns - column : 8;
  return count;
}

template <class M>
typename M::State reduce_tile(float const* x, int columns, int first_column, uint32_t tag) {
  typename M::State states[4];
  int counts[4];
  for (int q = 0; q < 4; ++q) {
    typename M::Thread thread;
    for (int column = 0; column < kTile; column += 32) {
      int const at = column + 8 * q, existing = columns - at;
      if (existing >= 8) {
        float run[8];
        for (int i = 0; i < 8; ++i) run[i] = x[at + i];
        thread.add_run(run, column == 0, column);
      } else {
        for (int i = 0; i < existing; ++i) thread.add(x[at + i], column == 0 && i == 0, column + i);
      }
    }
    counts[q] = columns_of_thread(q, columns);
    states[q] = thread.finish(counts[q], first_column + 8 * q);
  }
  auto const even = M::merge(states[0], states[2], counts[0], counts[2]);
  auto const odd = M::merge(states[1], states[3], counts[1], counts[3]);
  auto const all = M::merge(even, odd, counts[0] + counts[2], counts[1] + counts[3]);
  constexpr uint64_t kTag = uint64_t(1) << 32;
  uint64_t const word = (all.pack() & ~kTag) | uint64_t(tag) << 32;
  return M::State::unpack(word & ~kTag);
}

template <class M>
typename M::State reduce_row(float const* x, int n, uint32_t tag) {
  typename M::Merger merger;
  for (int column = 0; column < n; column += kTile) {
    int const columns = n - column < kTile ? n - column : kTile;
    merger.add(reduce_tile<M>(x + column, columns, column, tag), columns, column == 0);
  }
  return merger.finish(1.f / n);
}

#define REDUCE(M, F)                                              \
  extern "C" float M##_##F(float const* x, int n, unsigned tag) { \
    return reduce_row<cf::M>(x, n, tag).get<cf::F>(1.f / n);      \
  }
REDUCE(Sum, value)
REDUCE(Prod, value)
REDUCE(Max, value)
REDUCE(Min, value)
REDUCE(SumSq, value)
REDUCE(Welford, mean)
REDUCE(Welford, variance)
REDUCE(Softmax, maximum)
REDUCE(Softmax, sumexp)
REDUCE(Softmax, lse)
REDUCE(ArgMax, value)
REDUCE(ArgMin, value)
