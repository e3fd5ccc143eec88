// Stands in for the header of this name: barriers and clusters of the emulated GPU.
#pragma once

#include "comfuse/host_device.hpp"
#include "cuda_runtime.h"

namespace comfuse::sm90 {
inline uint32_t shared_address(void const* p) { return emulator::shared_address(p); }
using Barrier = emulator::Barrier;
inline void fence_barrier_init() {}
inline void arrive_at_cluster() { emulator::arrive_at_cluster(); }
inline void wait_for_cluster() { emulator::wait_for_cluster(); }
}  // namespace comfuse::sm90
