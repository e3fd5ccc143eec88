// Values a column, which are stored as vectors of N entries: one thread computes one column's.
#pragma once

#include "comfuse/sm90/values.hpp"

namespace comfuse::sm90 {

// One column, with the States of all column reductions.
template <class Kernel>
struct ColumnSource {
  typename Kernel::Params const& params;
  int column;
  States<ColReductionsOf<typename Kernel::Program>> states;

  template <int R, Field F>
  CF_DEVICE float read(ColStat<R, F>) const {
    return state_of<R>(states).template get<F>(1.f / params.m);
  }
  template <int I, class T>
  CF_DEVICE float read(RowVector<I, T>) const {
    CfTensor const& vector = params.operands[I];
    return to_float(static_cast<T const*>(vector.data)[column * vector.stride]);
  }
  CF_DEVICE float read(ColumnIndex) const { return float(column); }
};

template <class Kernel, int Output, class T, class X>
CF_DEVICE void store_row_vector(ColumnSource<Kernel> const& source, RowStore<Output, T, X>) {
  CfTensor const& out = source.params.outputs[Output];
  static_cast<T*>(out.data)[source.column * out.stride] = from_float<T>(evaluate_one(source, X{}));
}
template <class Kernel, class... S>
CF_DEVICE void store_row_vectors(ColumnSource<Kernel> const& source, List<S...>) {
  (store_row_vector(source, S{}), ...);
}

}  // namespace comfuse::sm90
