// Stands in for CUDA's header on the host.
#pragma once

#include "emulator/formats.hpp"

struct __nv_bfloat16 {
  uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 x) { return emulator::float_of_bf16(x.bits); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return {emulator::bf16_of(x)}; }
