// Element types in memory and their conversion to and from float32, the type of everything between.
//
// Stores: to bf16, fp16 and the two fp8 formats, to nearest even; beyond e4m3's 448 saturated, beyond
// e5m2's 57344 infinite, as torch's `.to` does (2.13 and later; before, e4m3 became NaN); NaN loses its sign.
// To integers, truncated toward zero and saturated; NaN becomes 0.  To boolean, 1 for all but zero, NaN too.
// Loads: integers beyond 2^24 are rounded to float32.
//
// Compiles for the host too, which stands in for the device's conversion instructions, so that what is
// built on them is tested there.  The 16-bit formats need CUDA's headers: they are left out without nvcc.
#ifndef COMFUSE_NUMERIC_HPP_
#define COMFUSE_NUMERIC_HPP_

#include <stdint.h>

#include "comfuse/host_device.hpp"
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#else
#include <string.h>
#endif

namespace comfuse {

#ifdef __CUDACC__
using bf16 = __nv_bfloat16;
using fp16 = __half;
#endif
using fp32 = float;
struct e4m3 {  // torch.float8_e4m3fn: no infinities
  uint8_t bits;
};
struct e5m2 {  // torch.float8_e5m2
  uint8_t bits;
};
using int8 = int8_t;
using uint8 = uint8_t;
struct boolean {  // one byte, 0 or 1
  uint8_t bits;
};
using int32 = int32_t;
using int64 = int64_t;

namespace detail {

CF_HD uint32_t bits_of(float x) {
#ifdef __CUDACC__
#ifdef __CUDA_ARCH__
  return __float_as_uint(x);
#else
  union {
    float f;
    uint32_t u;
  } const both{x};
  return both.u;
#endif
#else
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
#endif
}

// On the host, cvt.rn.satfinite to a format with `kMantissa` bits of mantissa, whose smallest normal number
// is 2^kMinimum and whose largest has the bits `largest`.
template <int kMantissa, int kMinimum>
CF_HD uint32_t round_to_fp8(float x, uint32_t largest) {
  uint32_t const sign = bits_of(x) >> 31 << 7, magnitude = bits_of(x) & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fu;
  int exponent = int(magnitude >> 23) - 127;
  if (exponent < kMinimum) exponent = kMinimum;
  // In units of the last place, whose rounding is exact in float64: at most kMantissa + 1 bits remain.
  double const unit = ::ldexp(1.0, exponent - kMantissa), scaled = ::fabs(double(x)) / unit;
  double const floor = double(uint32_t(scaled < 4096.0 ? scaled : 4096.0)), rest = scaled - floor;
  uint32_t units = uint32_t(floor);
  if (rest > 0.5 || (rest == 0.5 && units % 2 == 1)) ++units;
  // A carry out of the mantissa goes on into the exponent.
  uint32_t const rounded = (uint32_t(exponent - kMinimum) << kMantissa) + units;
  return sign | (magnitude == 0x7f800000u || rounded > largest ? largest : rounded);
}

// Two elements in 16 bits, `first` in the low byte; what exceeds the format becomes its largest number.
CF_HD uint32_t saturated_e4m3x2(float first, float second) {
#ifdef __CUDA_ARCH__
  uint16_t bits;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(second), "f"(first));
  return bits;
#else
  return round_to_fp8<3, -6>(first, 0x7e) | round_to_fp8<3, -6>(second, 0x7e) << 8;
#endif
}
CF_HD uint32_t saturated_e5m2x2(float first, float second) {
#ifdef __CUDA_ARCH__
  uint16_t bits;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(second), "f"(first));
  return bits;
#else
  return round_to_fp8<2, -14>(first, 0x7b) | round_to_fp8<2, -14>(second, 0x7b) << 8;
#endif
}

CF_HD uint32_t e4m3x2(float first, float second) { return saturated_e4m3x2(first, second); }
CF_HD uint32_t e5m2x2(float first, float second) {
  // From halfway between the largest number, 0x7b, and what would be the next one: infinity, 0x7c.
  constexpr float kInfinite = 61440.f;
  uint32_t bits = saturated_e5m2x2(first, second);
  if (::fabsf(first) >= kInfinite) bits += 1;
  if (::fabsf(second) >= kInfinite) bits += 1 << 8;
  return bits;
}

// A finite fp8 number without its sign; the exponent's bias is 1 - kMinimum.
template <int kMantissa, int kMinimum>
CF_HD float fp8_magnitude(uint32_t bits) {
  int const exponent = int(bits >> kMantissa), mantissa = int(bits & ((1u << kMantissa) - 1));
  return exponent == 0 ? ::ldexpf(float(mantissa), kMinimum - kMantissa)
                       : ::ldexpf(float(mantissa + (1 << kMantissa)), exponent - 1 + kMinimum - kMantissa);
}

// Toward zero, saturating; NaN gives 0.
CF_HD int32_t truncate32(float x) {
#ifdef __CUDA_ARCH__
  int32_t y;
  asm("cvt.rzi.s32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
#else
  if (x != x) return 0;
  if (x >= 2147483648.f) return INT32_MAX;
  return x <= -2147483648.f ? INT32_MIN : int32_t(x);
#endif
}
CF_HD int64_t truncate64(float x) {
#ifdef __CUDA_ARCH__
  int64_t y;
  asm("cvt.rzi.s64.f32 %0, %1;" : "=l"(y) : "f"(x));
  return x == x ? y : 0;  // here the instruction makes the lowest number of NaN
#else
  if (x != x) return 0;
  if (x >= 9223372036854775808.f) return INT64_MAX;
  return x <= -9223372036854775808.f ? INT64_MIN : int64_t(x);
#endif
}
CF_HD int32_t clamp(int32_t x, int32_t low, int32_t high) { return x < low ? low : (x > high ? high : x); }

}  // namespace detail

// ---- one element
#ifdef __CUDACC__
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(fp16 x) { return __half2float(x); }
#endif
CF_HD float to_float(fp32 x) { return x; }
CF_HD float to_float(e4m3 x) {
  uint32_t const magnitude = x.bits & 0x7fu;
  float const y = magnitude == 0x7fu ? NAN : detail::fp8_magnitude<3, -6>(magnitude);
  return x.bits & 0x80u ? -y : y;
}
CF_HD float to_float(e5m2 x) {
  uint32_t const magnitude = x.bits & 0x7fu;
  float const y =
      magnitude > 0x7cu ? NAN : (magnitude == 0x7cu ? INFINITY : detail::fp8_magnitude<2, -14>(magnitude));
  return x.bits & 0x80u ? -y : y;
}
CF_HD float to_float(int8 x) { return float(x); }
CF_HD float to_float(uint8 x) { return float(x); }
CF_HD float to_float(boolean x) { return x.bits != 0 ? 1.f : 0.f; }
CF_HD float to_float(int32 x) { return float(x); }
CF_HD float to_float(int64 x) { return float(x); }

template <class T>
CF_HD T from_float(float x);
#ifdef __CUDACC__
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ fp16 from_float<fp16>(float x) {
  return __float2half_rn(x);
}
#endif
template <>
CF_HD fp32 from_float<fp32>(float x) {
  return x;
}
template <>
CF_HD e4m3 from_float<e4m3>(float x) {
  return {uint8_t(detail::e4m3x2(x, 0.f))};
}
template <>
CF_HD e5m2 from_float<e5m2>(float x) {
  return {uint8_t(detail::e5m2x2(x, 0.f))};
}
template <>
CF_HD int8 from_float<int8>(float x) {
  return int8(detail::clamp(detail::truncate32(x), -128, 127));
}
template <>
CF_HD uint8 from_float<uint8>(float x) {
  return uint8(detail::clamp(detail::truncate32(x), 0, 255));
}
template <>
CF_HD boolean from_float<boolean>(float x) {
  return {uint8_t(x != 0.f)};
}
template <>
CF_HD int32 from_float<int32>(float x) {
  return detail::truncate32(x);
}
template <>
CF_HD int64 from_float<int64>(float x) {
  return detail::truncate64(x);
}

}  // namespace comfuse

#endif
