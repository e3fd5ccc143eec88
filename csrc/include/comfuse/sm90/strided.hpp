// Tiles that TMA cannot bring or that no 16-byte store can write: rows, and the columns of an output, lie in
// two levels of strides and start anywhere.  Threads address global memory themselves, a run of eight
// columns at once where the strides of this launch allow it, otherwise element by element.
#pragma once

#include "comfuse/abi.h"
#include "comfuse/blocks.hpp"
#include "comfuse/program.hpp"
#include "comfuse/sm90/instructions.hpp"

namespace comfuse::sm90 {

// Predicated, not branched around: a branch would end the scheduler's block at every access.  The operands
// of a launch do not change while it runs, so that loads may move; stores are volatile.
#define CF_PREDICATED(CONDITION, INSTRUCTION) \
  "{ .reg .pred q; setp.ne.s32 q, " CONDITION ", 0; @q " INSTRUCTION "; }"

template <class T>
CF_DEVICE void load_block_if(bool condition, T const* p, Block<T>& block) {
  uint32_t* w = block.words;
  if constexpr (sizeof(T) == 1) {
    asm(CF_PREDICATED("%3", "ld.global.v2.u32 {%0, %1}, [%2]")
        : "+r"(w[0]), "+r"(w[1])
        : "l"(p), "r"(int(condition)));
  } else {
#pragma unroll
    for (int i = 0; i < Block<T>::kWords; i += 4)
      asm(CF_PREDICATED("%5", "ld.global.v4.u32 {%0, %1, %2, %3}, [%4]")
          : "+r"(w[i]), "+r"(w[i + 1]), "+r"(w[i + 2]), "+r"(w[i + 3])
          : "l"(reinterpret_cast<uint4 const*>(p) + i / 4), "r"(int(condition)));
  }
}
template <class T>
CF_DEVICE void store_block_if(bool condition, T* p, Block<T> const& block) {
  uint32_t const* w = block.words;
  if constexpr (sizeof(T) == 1) {
    asm volatile(CF_PREDICATED("%3", "st.global.v2.u32 [%0], {%1, %2}")::"l"(p), "r"(w[0]), "r"(w[1]),
                 "r"(int(condition)));
  } else {
#pragma unroll
    for (int i = 0; i < Block<T>::kWords; i += 4)
      asm volatile(CF_PREDICATED("%5", "st.global.v4.u32 [%0], {%1, %2, %3, %4}")::"l"(
                       reinterpret_cast<uint4*>(p) + i / 4),
                   "r"(w[i]), "r"(w[i + 1]), "r"(w[i + 2]), "r"(w[i + 3]), "r"(int(condition)));
  }
}

// The i-th of a block's elements.
template <class T>
CF_DEVICE void load_element_if(bool condition, T const* p, Block<T>& block, int i) {
  constexpr int kBits = 8 * sizeof(T);
  uint32_t* w = block.words;
  if constexpr (sizeof(T) == 8) {
    asm(CF_PREDICATED("%3", "ld.global.v2.u32 {%0, %1}, [%2]")
        : "+r"(w[2 * i]), "+r"(w[2 * i + 1])
        : "l"(p), "r"(int(condition)));
  } else if constexpr (sizeof(T) == 4) {
    asm(CF_PREDICATED("%2", "ld.global.u32 %0, [%1]") : "+r"(w[i]) : "l"(p), "r"(int(condition)));
  } else {
    uint32_t bits = 0;
    if constexpr (sizeof(T) == 2)
      asm(CF_PREDICATED("%2", "ld.global.u16 %0, [%1]") : "+r"(bits) : "l"(p), "r"(int(condition)));
    else
      asm(CF_PREDICATED("%2", "ld.global.u8 %0, [%1]") : "+r"(bits) : "l"(p), "r"(int(condition)));
    w[i * kBits / 32] |= bits << i * kBits % 32;
  }
}
template <class T>
CF_DEVICE void store_element_if(bool condition, T* p, Block<T> const& block, int i) {
  constexpr int kBits = 8 * sizeof(T);
  uint32_t const* w = block.words;
  if constexpr (sizeof(T) == 8) {
    asm volatile(CF_PREDICATED("%3", "st.global.v2.u32 [%0], {%1, %2}")::"l"(p), "r"(w[2 * i]),
                 "r"(w[2 * i + 1]), "r"(int(condition)));
  } else {
    uint32_t const bits = w[i * kBits / 32] >> i * kBits % 32;
    if constexpr (sizeof(T) == 4)
      asm volatile(CF_PREDICATED("%2", "st.global.u32 [%0], %1")::"l"(p), "r"(bits), "r"(int(condition)));
    else if constexpr (sizeof(T) == 2)
      asm volatile(CF_PREDICATED("%2", "st.global.u16 [%0], %1")::"l"(p), "r"(bits), "r"(int(condition)));
    else
      asm volatile(CF_PREDICATED("%2", "st.global.u8 [%0], %1")::"l"(p), "r"(bits), "r"(int(condition)));
  }
}
#undef CF_PREDICATED

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

  // `row(r)`: the thread's r-th row within its batch.  `kColumns`: of the matrix; 0 for an operand, whose
  // columns are contiguous.
  template <class T, int kColumns, class Row>
  CF_DEVICE void locate(CfTensor const& tensor, int batch, int m, Row const& row) {
    constexpr int kAlignment = sizeof(T) == 1 ? 8 : 16;
    auto const base = static_cast<T*>(tensor.data) + batch * tensor.batch_stride;
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
