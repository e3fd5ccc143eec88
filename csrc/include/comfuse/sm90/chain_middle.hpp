// The programs between a chain's GEMMs, on the accumulators of one, whose layout is that of the A operand of
// the next: nothing moves between threads.
//
// The unit is again a fragment of 32 columns, v[4 j + 2 half + e], but the factor's rows keep their order: it
// is column 8 j + 2 q + e of row 8 half + lane / 4, with q = lane % 4.  So a thread has pairs of columns.
#pragma once

#include "comfuse/sm90/fragment.hpp"
#include "comfuse/sm90/values.hpp"

namespace comfuse::sm90 {

// Of the thread's warpgroup.  Unlike warp_id(), computed where it is needed: it takes no register in between.
CF_DEVICE int warp_of_group() { return threadIdx.x / 32 % 4; }

// Values a row: each thread computes those of its two rows, straight from memory.
template <class Kernel, class Middle>
struct MiddleRows {
  using Columns = typename Middle::Columns;
  using Strided =
      typename Filter<IsStridedTile, MiddleOperandsOf<Middle, typename Kernel::OperandList>>::type;

  typename Kernel::Params const& params;
  int rows[2];
  float values[Columns::size + 1][2];
  StridedRows<2> strided[Strided::size + 1];

  // `row`: the thread's first row; the other is 8 rows on.
  CF_DEVICE MiddleRows(typename Kernel::Params const& params_, typename Kernel::Item const& item, int row)
      : params(params_), rows{row, row + 8} {
    evaluate(Columns{});
    locate(item, Strided{});
  }

 private:
  struct OneRow {
    MiddleRows const& all;
    typename Kernel::Params const& params;
    int half;

    template <int I, class T>
    CF_DEVICE float read(ColumnVector<I, T>) const {
      CfTensor const& tensor = params.operands[I];
      // The rows beyond the last are not stored: any value serves.
      return to_float(static_cast<T const*>(tensor.data)[min(all.rows[half], params.m - 1) * tensor.stride]);
    }
    CF_DEVICE float read(RowIndex) const { return float(all.rows[half]); }
    template <int I, class X>
    CF_DEVICE float read(Column<I, X>) const {
      return all.values[I][half];
    }
  };
  template <int... I, class... X>
  CF_DEVICE void evaluate(List<Column<I, X>...>) {
    (evaluate_rows(I, X{}), ...);
  }
  template <class X>
  CF_DEVICE void evaluate_rows(int index, X) {
#pragma unroll
    for (int half = 0; half < 2; ++half) values[index][half] = evaluate_one(OneRow{*this, params, half}, X{});
  }
  template <class... Operand>
  CF_DEVICE void locate(typename Kernel::Item const& item, List<Operand...>) {
    [[maybe_unused]] auto const row_of = [&](int half) { return min(rows[half], params.m - 1); };
    [[maybe_unused]] int operand = 0;
    (strided[operand++].template locate<typename ElementOf<Operand>::type, 0>(
         params.operands[ElementOf<Operand>::index],
         Kernel::batch_of_operand(params, ElementOf<Operand>::index, item), params.m, row_of),
     ...);
  }
};

// What the expressions of a middle behind `Products` GEMMs read; the last members say which fragment is at
// hand.
template <class Kernel, class Middle, int Products>
struct MiddleSource {
  typename Kernel::Params const& params;
  MiddleRows<Kernel, Middle> const& rows;
  uint8_t const* vectors;  // the middles' values a column, in shared memory
  float const (*columns)[2];
  int row_of_warp;  // in the tile

  static constexpr int i = 0;  // 64 rows are one wgmma's
  int column;  // first column of the fragment
  uint8_t const* const* tiles;
  Fragment acc[Products];

  CF_DEVICE MiddleSource(typename Kernel::Params const& params_, MiddleRows<Kernel, Middle> const& rows_,
                         uint8_t const* vectors_, int row_of_warp_)
      : params(params_), rows(rows_), vectors(vectors_), columns(rows_.values), row_of_warp(row_of_warp_) {}

  CF_DEVICE int global_row(int half) const { return rows.rows[half]; }

  template <class>
  static constexpr bool binds = false;
  CF_DEVICE MiddleSource const& source() const { return *this; }
};

template <class Kernel, class Middle, int Products>
CF_DEVICE Fragment read(MiddleSource<Kernel, Middle, Products> const& source, ColumnIndex) {
  return detail::numbers_of_pairs(source.column);
}
template <class Kernel, class Middle, int Products, class X>
CF_DEVICE Fragment read(MiddleSource<Kernel, Middle, Products> const& source, Vector<X>) {
  return detail::pairs_of_vector(
      reinterpret_cast<float const*>(source.vectors + Kernel::template middle_offset<Vector<X>>) +
      source.column);
}
template <class Kernel, class Middle, int Products, int Index, class T>
CF_DEVICE Fragment read(MiddleSource<Kernel, Middle, Products> const& source, Tile<Index, T>) {
  using Tiles = typename Middle::Tiles;
  constexpr int kTile = index_among<detail::Always, Tile<Index, T>>(Tiles{});
  auto const* slot = reinterpret_cast<T const*>(source.tiles[kTile]);
  T const* x = slot + (source.row_of_warp + lane_id() / 4) * kFragmentColumns + first_pair_of_thread();
  Fragment f;
#pragma unroll
  for (int n = 0; n < kFragmentValues; n += 2)
    detail::load_pair(x + n / 2 % 2 * 8 * kFragmentColumns + n / 4 * 8, f.v[n], f.v[n + 1]);
  return f;
}

template <class Kernel, class Middle, int Products, int Index, class T>
CF_DEVICE Fragment read(MiddleSource<Kernel, Middle, Products> const& source, StridedTile<Index, T>) {
  using Leaf = StridedTile<Index, T>;
  constexpr int kColumns = Kernel::template kColumnsOf<Leaf>;
  auto const& rows =
      source.rows.strided[index_among<IsStridedTile, Leaf>(typename MiddleRows<Kernel, Middle>::Strided{})];
  Fragment f;
#pragma unroll
  for (int n = 0; n < kFragmentValues; n += 2) {
    T const* x = rows.template row<T>(n / 2 % 2) + source.column + n / 4 * 8 + first_pair_of_thread();
    f.v[n] = f.v[n + 1] = 0.f;
    if (kColumns % kFragmentColumns != 0 && source.column + n / 4 * 8 >= kColumns) continue;
    if (rows.blocks)
      detail::load_pair(x, f.v[n], f.v[n + 1]);
    else
      f.v[n] = to_float(x[0]), f.v[n + 1] = to_float(x[1]);
  }
  return f;
}

// What a middle hands on, left in place of the product, of 32 columns of which `existing` do.
template <class Env, class X>
CF_DEVICE void pass_on(Env const& env, float* values, int existing, Pass<X>) {
  Fragment const f = evaluate<X>(env);
  // Columns that do not exist meet zeros in the factor, but might be infinite or NaN.
#pragma unroll
  for (int n = 0; n < kFragmentValues; ++n) values[n] = n / 4 * 8 < existing ? f.v[n] : 0.f;
}
// Accumulators as wgmma's A, which holds the same elements in each thread.
template <class T, int Words>
CF_DEVICE void pack_passed(float const* values, uint32_t (&passed)[Words]) {
#pragma unroll
  for (int i = 0; i < Words; i += 4) {
    float run[8];
#pragma unroll
    for (int n = 0; n < 8; ++n) run[n] = values[2 * i + n];
    Block<T> const words = pack<T>(run);
#pragma unroll
    for (int n = 0; n < 4; ++n) passed[i + n] = words.words[n];
  }
}

}  // namespace comfuse::sm90
