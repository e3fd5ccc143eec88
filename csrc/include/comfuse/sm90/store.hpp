// A fragment to global memory, straight from registers: a thread's eight columns are 16 or 32 bytes.
#pragma once

#include "comfuse/sm90/fragment.hpp"

namespace comfuse::sm90 {

// Predicated, not branched around: a branch would end the scheduler's block at every store.
CF_DEVICE void store_if(bool condition, void* p, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  asm volatile("{ .reg .pred q; setp.ne.s32 q, %5, 0; @q st.global.v4.u32 [%0], {%1, %2, %3, %4}; }" ::"l"(p),
               "r"(x), "r"(y), "r"(z), "r"(w), "r"(int(condition)));
}

// The thread's run of eight columns in one row; `row` is that row at the fragment's first column.
template <class T>
CF_DEVICE void store(Fragment const& f, int half, T* row, bool valid) {
  T* out = row + first_column_of_thread();
  if constexpr (sizeof(T) == 2) {
    uint32_t r[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) r[j] = Pair<T>::pack(f.at(half, 2 * j), f.at(half, 2 * j + 1));
    store_if(valid, out, r[0], r[1], r[2], r[3]);
  } else {
#pragma unroll
    for (int i = 0; i < 8; i += 4)
      store_if(valid, out + i, __float_as_uint(f.at(half, i)), __float_as_uint(f.at(half, i + 1)),
               __float_as_uint(f.at(half, i + 2)), __float_as_uint(f.at(half, i + 3)));
  }
}

}  // namespace comfuse::sm90
