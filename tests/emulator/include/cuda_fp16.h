// Stands in for CUDA's header on the host.
#pragma once

#include "emulator/formats.hpp"

struct __half {
  uint16_t bits;
};
inline float __half2float(__half x) { return emulator::float_of_fp16(x.bits); }
inline __half __float2half_rn(float x) { return {emulator::fp16_of(x)}; }
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
