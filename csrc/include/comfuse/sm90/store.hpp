// Fragments to global memory, straight from registers.
//
// `store(source, fragment, Effect{})` writes what exists of a fragment; `source` (fragment.hpp) says which
// fragment it is.
#pragma once

#include "comfuse/sm90/fragment.hpp"

namespace comfuse::sm90 {

template <class T>
CF_DEVICE Block<T> pack_run(Fragment const& f, int half) {
  float x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = f.at(half, i);
  return pack<T>(x);
}

// Four pairs, in pieces of 8 bytes: the quad writes whole sectors of 32.
template <class T>
CF_DEVICE void store_pairs_if(bool condition, T* to, Block<T>& block) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4);
  if constexpr (sizeof(T) == 2) join_pairs<WarpLanes<uint32_t>>(block.words);
  constexpr int kPieces = Block<T>::kWords / 2;
#pragma unroll
  for (int i = 0; i < kPieces; ++i)
    store_words_if(condition, to + i * (kFragmentColumns / kPieces), block.words[2 * i],
                   block.words[2 * i + 1]);
}

// Rows start at multiples of 16 bytes and N is a multiple of 8: a run of eight columns exists or does not.
template <class Kernel, class P, int Output, class T, class X>
CF_DEVICE void store(FragmentSource<Kernel, P> const& source, Fragment const& f, TileStore<Output, T, X>) {
  static_assert(Kernel::N % 8 == 0, "rows of such a matrix are not aligned: StridedStore");
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    T* const to = source.template run_of<TileStore<Output, T, X>>(half);
    Block<T> block = pack_run<T>(f, half);
    if constexpr (Kernel::kPairs)
      store_pairs_if(source.has_row(half), to, block);
    else
      store_block_if(source.existing_columns() > 0 && source.has_row(half), to, block);
  }
}

template <class Kernel, class P, int Output, class T, class X>
CF_DEVICE void store(FragmentSource<Kernel, P> const& source, Fragment const& f, StridedStore<Output, T, X>) {
  CfTensor const& tensor = source.params.outputs[Output];
  auto const& strided = source.template strided<StridedStore<Output, T, X>>();
  int const count = source.existing_columns();
  TwoLevels column(source.first_column(), tensor.column_period, Kernel::N);
  int64_t offset = column.offset(tensor.column_outer, tensor.column_stride);
  Block<T> const blocks[2] = {pack_run<T>(f, 0), pack_run<T>(f, 1)};
  if (strided.blocks && (Kernel::N % 8 == 0 || count >= 8)) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      store_block_if(count > 0 && source.has_row(half), strided.template row<T>(2 * source.i + half) + offset,
                     blocks[half]);
  } else {
    int64_t const wrap = tensor.column_outer - column.period * tensor.column_stride;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        store_element_if(i < count && source.has_row(half),
                         strided.template row<T>(2 * source.i + half) + offset, blocks[half], i);
      offset += tensor.column_stride;
      if (++column.inner == column.period) column.inner = 0, offset += wrap;
    }
  }
}

}  // namespace comfuse::sm90
