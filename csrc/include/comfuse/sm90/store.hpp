// A fragment to global memory.  Nothing passes through shared memory: the four threads of a row
// exchange 16-bit pairs until each holds 16 contiguous bytes, and every store fills whole sectors.
#pragma once

#include "comfuse/sm90/fragment.hpp"

namespace comfuse::sm90 {

// Transposes four registers over the four threads of a row: r[k] becomes thread k's r[own index].
CF_DEVICE void transpose_quad(uint32_t (&r)[4]) {
  int const q = lane_id() % 4;
  bool const odd = q & 1, high = q & 2;
  uint32_t const x = __shfl_xor_sync(kFullWarp, odd ? r[0] : r[1], 1);
  uint32_t const y = __shfl_xor_sync(kFullWarp, odd ? r[2] : r[3], 1);
  uint32_t const a0 = odd ? x : r[0], a1 = odd ? r[1] : x;
  uint32_t const b0 = odd ? y : r[2], b1 = odd ? r[3] : y;
  uint32_t const s = __shfl_xor_sync(kFullWarp, high ? a0 : b0, 2);
  uint32_t const t = __shfl_xor_sync(kFullWarp, high ? a1 : b1, 2);
  r[0] = high ? s : a0;
  r[1] = high ? t : a1;
  r[2] = high ? b0 : s;
  r[3] = high ? b1 : t;
}

// Predicated, not branched around: a branch would end the scheduler's block at every store.
CF_DEVICE void store_if(bool condition, void* p, uint4 v) {
  asm volatile(
      "{ .reg .pred q; setp.ne.s32 q, %5, 0; @q st.global.v4.u32 [%0], {%1, %2, %3, %4}; }" ::"l"(p), "r"(v.x),
      "r"(v.y), "r"(v.z), "r"(v.w), "r"(int(condition)));
}
CF_DEVICE void store_if(bool condition, void* p, float2 v) {
  asm volatile("{ .reg .pred q; setp.ne.s32 q, %3, 0; @q st.global.v2.f32 [%0], {%1, %2}; }" ::"l"(p), "f"(v.x),
               "f"(v.y), "r"(int(condition)));
}

// `out`: the element at row 0 of the fragment's lane group (lane / 4) and column 0.  Rows `half` = 0,
// 1 lie `half_stride` elements apart and are stored if valid[half]; `columns` of the 32 exist, a
// multiple of 8.
template <class T>
CF_DEVICE void store(Fragment const& f, T* out, int64_t half_stride, bool const (&valid)[2], int columns) {
  int const q = lane_id() % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    T* row = out + half * half_stride;
    if constexpr (sizeof(T) == 2) {
      uint32_t r[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) r[j] = Pair<T>::pack(f.v[4 * j + 2 * half], f.v[4 * j + 2 * half + 1]);
      transpose_quad(r);
      store_if(valid[half] && 8 * q < columns, row + 8 * q, make_uint4(r[0], r[1], r[2], r[3]));
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        store_if(valid[half] && 8 * j < columns, row + 8 * j + 2 * q,
                 make_float2(f.v[4 * j + 2 * half], f.v[4 * j + 2 * half + 1]));
    }
  }
}

}  // namespace comfuse::sm90
