// Stores of the row that a thread owns: values a row, and a row and group of columns.
#pragma once

#include "comfuse/sm90/values.hpp"

namespace comfuse::sm90 {

// `Rows`: a RowSource.
template <int Output, class T, class Rows>
CF_DEVICE T* output_row(Rows const& rows) {
  CfTensor const& out = rows.params.outputs[Output];
  return Rows::Kernel::template base<T>(out, rows.item) + int64_t(rows.item.row() + rows.row) * out.stride;
}

template <class Rows, class E>
CF_DEVICE void store_column(Rows const&, E) {}
template <class Rows, int Output, class T, class X>
CF_DEVICE void store_column(Rows const& rows, ColumnStore<Output, T, X>) {
  *output_row<Output, T>(rows) = from_float<T>(evaluate_one(rows, X{}));
}
// Those among the effects.  `Owners`: who stores a row (quad.hpp).
template <class Owners, class Rows, class Tile, class... E>
CF_DEVICE void store_columns(Rows const& rows, Tile const& tile, List<E...>) {
  if (Owners::owns() && tile.has_row(rows.row)) (store_column(rows, E{}), ...);
}

// `Groups`: a GroupSource.
template <class Groups, class E>
CF_DEVICE void store_group(Groups const&, E) {}
template <class Groups, int Output, class T, class X>
CF_DEVICE void store_group(Groups const& source, GroupStore<Output, T, X>) {
  constexpr int kGroupsOfTile = Groups::Kernel::TileN / Groups::kGroup;
  output_row<Output, T>(source.rows)[source.rows.item.tile_n * kGroupsOfTile + source.group] =
      from_float<T>(evaluate_one(source, X{}));
}
template <class Owners, class Groups, class Tile, class... E>
CF_DEVICE void store_groups(Groups const& source, Tile const& tile, List<E...>) {
  if (Owners::owns() && tile.has_row(source.rows.row)) (store_group(source, E{}), ...);
}

}  // namespace comfuse::sm90
