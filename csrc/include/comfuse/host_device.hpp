// Functions for the device (nvcc) and the host (any C++17 compiler), where tests run them.
#ifndef COMFUSE_HOST_DEVICE_HPP_
#define COMFUSE_HOST_DEVICE_HPP_

#ifdef __CUDACC__
#define CF_HD __host__ __device__ __forceinline__
#define CF_DEVICE __device__ __forceinline__
#else
#include <math.h>
#define CF_HD inline
#endif

#endif
