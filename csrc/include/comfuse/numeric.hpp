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
  __device__ __forceinline__ static float second(uint32_t bits) {
    return __uint_as_float(bits & 0xffff0000u);
  }
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

// The elements of 16 bytes of memory.
__device__ __forceinline__ void load_block(float const* p, float (&x)[4]) {
  float4 const v = *reinterpret_cast<float4 const*>(p);
  x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}
template <class T>
__device__ __forceinline__ void load_block(T const* p, float (&x)[8]) {
  uint4 const v = *reinterpret_cast<uint4 const*>(p);
  uint32_t const bits[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = Pair<T>::first(bits[i]);
    x[2 * i + 1] = Pair<T>::second(bits[i]);
  }
}

}  // namespace comfuse
