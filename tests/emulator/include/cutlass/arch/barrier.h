// Stands in for CUTLASS's header on the host.
#pragma once

#include "cuda_runtime.h"

namespace cutlass::arch {
using ClusterTransactionBarrier = emulator::Barrier;
inline void fence_barrier_init() {}
}  // namespace cutlass::arch
