// Element types in memory and their conversion to and from float32, the type of everything between.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace comfuse {

using bf16 = __nv_bfloat16;
using fp16 = __half;
using fp32 = float;

// Two neighbouring 16-bit elements in one register, `first` in the low half.
template <class T>
struct Pair;

template <>
struct Pair<bf16> {
  __device__ __forceinline__ static uint32_t pack(float first, float second) {
    uint32_t bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(second), "f"(first));
    return bits;
  }
  __device__ __forceinline__ static float first(uint32_t bits) { return __uint_as_float(bits << 16); }
  __device__ __forceinline__ static float second(uint32_t bits) { return __uint_as_float(bits & 0xffff0000u); }
};

template <>
struct Pair<fp16> {
  __device__ __forceinline__ static uint32_t pack(float first, float second) {
    uint32_t bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(second), "f"(first));
    return bits;
  }
  __device__ __forceinline__ static float first(uint32_t bits) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits & 0xffffu)));
  }
  __device__ __forceinline__ static float second(uint32_t bits) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits >> 16)));
  }
};

__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(fp16 x) { return __half2float(x); }
__device__ __forceinline__ float to_float(float x) { return x; }

template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ fp16 from_float<fp16>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}

// Two neighbouring elements, at an address aligned for both.
template <class T>
__device__ __forceinline__ float2 load_pair(T const* p) {
  if constexpr (sizeof(T) == 4) {
    return *reinterpret_cast<float2 const*>(p);
  } else {
    uint32_t const bits = *reinterpret_cast<uint32_t const*>(p);
    return make_float2(Pair<T>::first(bits), Pair<T>::second(bits));
  }
}

}  // namespace comfuse
