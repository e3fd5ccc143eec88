// How much of a tile lies inside the matrix, and how much of that belongs to one warp or thread.
#pragma once

#include "comfuse/sm90/instructions.hpp"

namespace comfuse::sm90 {

template <class Kernel>
struct Extent {
  static constexpr int kFragments = Kernel::kFragments, TileN = Kernel::TileN;

  typename Kernel::Scheduler::Item item;
  int rows, columns;  // of the tile; a phantom tile has none

  CF_DEVICE Extent(typename Kernel::Scheduler::Item const& item, int m)
      : item(item),
        rows(min(int(Kernel::TileM), m - item.row())),
        columns(min(TileN, Kernel::N - item.column())) {}

  CF_DEVICE bool has_row(int row) const { return row < rows; }
  CF_DEVICE bool has_column(int column) const { return !Kernel::kClippedN || column < columns; }

  // Of its columns, those that thread q of a quad holds: runs of eight, one in each 32.
  CF_DEVICE float columns_of_thread(int q) const {
    if constexpr (!Kernel::kClippedN) return TileN / 4;
    if constexpr (Kernel::N % 8 == 0) return 8 * max(0, (columns - 8 * q + 31) / 32);
    int const whole = max(columns, 0) / 32;
    return 8 * whole + min(max(columns - 32 * whole - 8 * q, 0), 8);
  }

  // First of the 16 rows that a warp of the team has in each fragment; the fragments are 64 rows apart.
  CF_DEVICE static int first_row_of_warp(int warp) { return warp / 4 * (kFragments * 64) + warp % 4 * 16; }
  // Of its rows, those of a warp,
  CF_DEVICE int rows_of_warp(int warp) const {
    int count = 0;
#pragma unroll
    for (int i = 0; i < kFragments; ++i) count += min(max(rows - first_row_of_warp(warp) - 64 * i, 0), 16);
    return count;
  }
  // and of a thread of the warp with lane / 4 == group.
  CF_DEVICE float rows_of_thread(int first_row, int group) const {
    int count = 0;
#pragma unroll
    for (int r = 0; r < 2 * kFragments; ++r) count += first_row + 64 * (r / 2) + 8 * (r % 2) + group < rows;
    return count;
  }
};

}  // namespace comfuse::sm90
