// Stands in for comfuse/sm90/instructions.hpp on the host: one lane at a time, which `lane` names, or with
// barrier_of_four.hpp before it those of a quad, each in a thread of its own.
#pragma once

#include <math.h>
#include <string.h>

#include <algorithm>

#include "comfuse/numeric.hpp"

#define CF_DEVICE inline

inline uint32_t __float_as_uint(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}
inline float __uint_as_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
struct uint2 {
  uint32_t x, y;
};
struct uint4 {
  uint32_t x, y, z, w;
};
inline struct OnGrid {
  int x;
} blockIdx, gridDim;
using std::min;

namespace comfuse {
struct bf16 {  // for its size
  uint16_t bits;
};
inline float to_float(bf16 x) { return __uint_as_float(uint32_t(x.bits) << 16); }
template <>
inline bf16 from_float<bf16>(float x) {
  return {uint16_t(__float_as_uint(x) >> 16)};  // exact for what the tests store
}

namespace sm90 {
constexpr unsigned kFullWarp = 0xffffffffu;
inline thread_local int lane = 0;
inline int grid = 1;
inline int grid_size() { return grid; }
inline int lane_id() { return lane; }
}  // namespace sm90
}  // namespace comfuse

#ifdef CF_LANES_ARE_THREADS
inline float __shfl_sync(unsigned, float x, int from) {
  return quad::exchange(x, comfuse::sm90::lane, from % 4);
}
inline float __shfl_xor_sync(unsigned, float x, int mask) {
  return quad::exchange(x, comfuse::sm90::lane, comfuse::sm90::lane ^ mask);
}
#else
template <class T>
T __shfl_xor_sync(unsigned, T x, int) {
  return x;
}
#endif
