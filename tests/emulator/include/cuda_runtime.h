// Stands in for CUDA's runtime on the host: what a kernel's launcher calls, and what its code finds built in.
#pragma once

#include <math.h>
#include <time.h>

#include <algorithm>

#include "cuda.h"
#include "emulator/instructions.hpp"

#define __host__
#define __device__
#define __global__
#define __shared__
#define __grid_constant__
#define __forceinline__ inline
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)

// ---- built in
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
using std::max;
using std::min;
inline float __uint_as_float(uint32_t bits) { return emulator::float_of(bits); }
inline uint32_t __float_as_uint(float x) { return emulator::bits_of(x); }
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  uint64_t const bytes = uint64_t(high) << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) result |= uint32_t(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return result;
}
inline int __ffs(int x) { return __builtin_ffs(x); }
template <class T>
T __ldcg(T const* p) {
  return *p;
}
inline void __nanosleep(unsigned) { emulator::sleep_between_polls(); }
inline long long clock64() { return 0; }
inline void __syncthreads() { emulator::named_barrier(0, int(emulator::self().cta->threads.size()), true); }
inline void __syncwarp() { emulator::meet_warp("__syncwarp"); }
template <class T>
T __shfl_sync(unsigned, T x, int source) {
  return emulator::shuffle(x, source, "__shfl_sync");
}
template <class T>
T __shfl_xor_sync(unsigned, T x, int mask) {
  return emulator::shuffle(x, int(emulator::self().id % 32) ^ mask, "__shfl_xor_sync");
}
inline bool __all_sync(unsigned, bool x) {
  emulator::self().in = x;
  emulator::meet_warp("__all_sync", [] {
    uint64_t all = 1;
    for (int i = 0; i < 32; ++i) all &= emulator::lane(i).in;
    for (int i = 0; i < 32; ++i) emulator::lane(i).out = all;
  });
  return emulator::self().out != 0;
}

// ---- the runtime
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorLaunchFailure = 719 };
using cudaStream_t = struct CUstream_st*;
enum cudaLaunchAttributeID { cudaLaunchAttributeClusterDimension, cudaLaunchAttributeCooperative };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  union {
    struct {
      unsigned x, y, z;
    } clusterDim;
    int cooperative;
  } val;
};
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};
struct cudaFuncAttributes {
  int numRegs;
  size_t localSizeBytes;
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };
enum { cudaEnableDefault };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess };

inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  return *value = emulator::machine.processors, cudaSuccess;
}
inline cudaError_t cudaFuncSetAttribute(void const*, cudaFuncAttribute, int bytes) {
  return bytes <= emulator::kSharedBytes ? cudaSuccess : cudaErrorInvalidValue;
}
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void const*) {
  return *attributes = {}, cudaSuccess;
}
inline cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, void const*,
                                                  cudaLaunchConfig_t const* config) {
  return *clusters = emulator::machine.processors / int(config->attrs[0].val.clusterDim.x), cudaSuccess;
}

inline CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                       void* data, cuuint64_t const* sizes, cuuint64_t const* strides,
                                       cuuint32_t const* box, cuuint32_t const* steps, CUtensorMapInterleave,
                                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                                       CUtensorMapFloatOOBfill) {
  emulator::TensorMap t{};
  t.base = uint64_t(data), t.rank = rank, t.element = 1u << type,
  t.swizzle = swizzle == CU_TENSOR_MAP_SWIZZLE_NONE ? 0 : 32u << swizzle;
  if (rank > 5) return CUDA_ERROR_INVALID_VALUE;
  for (cuuint32_t i = 0; i < rank; ++i) {
    if (steps[i] != 1) return CUDA_ERROR_INVALID_VALUE;
    t.sizes[i] = sizes[i], t.box[i] = box[i];
    if (i + 1 < rank) t.strides[i] = strides[i];
  }
  memcpy(map, &t, sizeof t);
  return emulator::is_legal(t) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
inline cudaError_t cudaGetDriverEntryPointByVersion(char const*, void** function, unsigned, int,
                                                    cudaDriverEntryPointQueryResult* found) {
  *function = reinterpret_cast<void*>(&cuTensorMapEncodeTiled);
  return *found = cudaDriverEntryPointSuccess, cudaSuccess;
}

// `function` takes its parameters by reference, which `rewrite.py` sees to.
inline cudaError_t cudaLaunchKernelExC(cudaLaunchConfig_t const* config, void const* function,
                                       void** arguments) {
  auto* const kernel = reinterpret_cast<void (*)(void const*)>(const_cast<void*>(function));
  unsigned const cluster = config->attrs[0].val.clusterDim.x;
  emulator::machine.error.clear();
  try {
    if (config->gridDim.x == 0 || int(config->gridDim.x) > emulator::machine.processors ||
        config->gridDim.x % cluster != 0)
      emulator::fail("a grid of %u CTAs", config->gridDim.x);
    ::gridDim = {config->gridDim.x, 1, 1};
    emulator::machine.body = [&] { kernel(arguments[0]); };
    emulator::run_grid({config->gridDim.x, cluster, int(config->blockDim.x), int(config->dynamicSmemBytes)},
                       config->numAttrs > 1);
    return cudaSuccess;
  } catch (std::runtime_error const& e) {
    emulator::machine.error = e.what();
    return cudaErrorLaunchFailure;
  }
}

extern "C" inline __attribute__((used, visibility("default"))) void emulator_configure(uint64_t seed) {
  emulator::machine.random.seed(seed);
}
extern "C" inline __attribute__((used, visibility("default"))) char const* emulator_error() {
  return emulator::machine.error.c_str();
}
