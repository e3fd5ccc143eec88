// Tiles that TMA cannot bring or that no 16-byte store can write: rows, and the columns of an output, lie in
// two levels of strides and start anywhere.  Threads address global memory themselves, a run of eight
// columns at once where the strides of this launch allow it, otherwise element by element.
#pragma once

#include "comfuse/abi.h"
#include "comfuse/program_parts.hpp"
#include "comfuse/sm90/access.hpp"

namespace comfuse::sm90 {

// position / period and position % period, for 0 <= position < end; a period of `end` or more never ends.
struct TwoLevels {
  uint32_t outer, inner, period;
  CF_DEVICE TwoLevels(uint32_t position, int64_t period_, uint32_t end)
      : period(period_ < end ? uint32_t(period_) : end) {
    outer = position / period;
    inner = position - outer * period;
  }
  CF_DEVICE int64_t offset(int64_t outer_stride, int64_t inner_stride) const {
    return outer * outer_stride + inner * inner_stride;
  }
};

// Where a thread's rows of one strided tensor lie, for one tile.
template <int Rows>
struct StridedRows {
  uint8_t* rows[Rows];  // column 0
  bool blocks;          // each run of eight columns is contiguous and aligned

  template <class T>
  CF_DEVICE T* row(int r) const {
    return reinterpret_cast<T*>(rows[r]);
  }

  // `batch`: where its part of the tensor begins.  `row(r)`: the thread's r-th row within it.  `kColumns`: of
  // the matrix; 0 for an operand, whose columns are contiguous.
  template <class T, int kColumns, class Row>
  CF_DEVICE void locate(CfTensor const& tensor, int64_t batch, int m, Row const& row) {
    constexpr int kAlignment = sizeof(T) == 1 ? 8 : 16;
    auto const base = static_cast<T*>(tensor.data) + batch;
    uint64_t strides = tensor.stride;
    if (tensor.row_period < m) strides |= tensor.row_outer;
    bool contiguous = true;
    if constexpr (kColumns > 0) {
      contiguous = tensor.column_stride == 1;
      if (tensor.column_period < kColumns) strides |= tensor.column_outer;
    }
    // Runs begin at multiples of eight, of the matrix and of a period that is one.
    blocks = contiguous && (reinterpret_cast<uintptr_t>(base) | strides * sizeof(T)) % kAlignment == 0 &&
             (kColumns == 0 || tensor.column_period >= kColumns || tensor.column_period % 8 == 0);
#pragma unroll
    for (int r = 0; r < Rows; ++r)
      rows[r] = reinterpret_cast<uint8_t*>(
          base + TwoLevels(row(r), tensor.row_period, m).offset(tensor.row_outer, tensor.stride));
  }
};

}  // namespace comfuse::sm90
