// A fragment's part in the reductions of its phase: each thread adds what it holds to its Reducers.
#pragma once

#include "comfuse/sm90/fragment.hpp"
#include "comfuse/sm90/reductions.hpp"

namespace comfuse::sm90 {

namespace detail {
// What exists of the eight values that the thread has in one row of the fragment.
template <class Kernel, class P, class Thread>
CF_DEVICE void add_run(FragmentSource<Kernel, P> const& source, Thread& thread, Fragment const& f, int half,
                       bool first) {
  int const existing = source.existing_columns();
  if (Kernel::N % 8 == 0 ? existing > 0 : existing >= 8) {
    float run[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) run[c] = f.at(half, c);
    thread.add_run(run, first, source.column);
  } else if (Kernel::N % 8 != 0) {
#pragma unroll
    for (int c = 0; c < 7; ++c)
      if (c < existing) thread.add(f.at(half, c), first && c == 0, source.column + c);
  }
}
}  // namespace detail

template <class Source, class Reducer, int R, class Monoid, class X>
CF_DEVICE void accumulate(Source const& source, Fragment const& f, Reducer& reducer,
                          RowReduce<R, Monoid, X>) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
    detail::add_run(source, reducer.rows[2 * source.i + half], f, half, source.column == 0);
}

template <class Source, class Reducer, int R, class Monoid, int G, class X>
CF_DEVICE void accumulate(Source const& source, Fragment const& f, Reducer& reducer,
                          GroupReduce<R, Monoid, G, X>) {
  bool const first = source.column % G == 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    auto& row = reducer.rows[2 * source.i + half];
    if (first) row = typename Monoid::Thread{};
    detail::add_run(source, row, f, half, first);
  }
}

template <class Source, class Reducer, int R, class Monoid, class X>
CF_DEVICE void accumulate(Source const& source, Fragment const& f, Reducer& reducer,
                          FullReduce<R, Monoid, X>) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (source.has_row(half))
      detail::add_run(source, reducer.all, f, half, source.column == 0 && source.i == 0 && half == 0);
}

template <class Source, class Reducer, int R, class Monoid, class X>
CF_DEVICE void accumulate(Source const& source, Fragment const& f, Reducer& reducer,
                          ColReduce<R, Monoid, X>) {
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    auto& column = reducer.columns[c];
    if (source.i == 0) column.begin(__shfl_sync(kFullWarp, f.at(0, c), lane_id() % 4));
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (source.has_row(half)) column.add(f.at(half, c));
  }
}

}  // namespace comfuse::sm90
