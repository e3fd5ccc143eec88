// Stands in for CuTe's header on the host.
#pragma once

#include "cuda_runtime.h"

namespace cute {
namespace TMA {
enum class CacheHintSm90 : uint64_t { EVICT_NORMAL, EVICT_FIRST, EVICT_LAST };
}
using SM90_TMA_LOAD_2D = emulator::TmaLoad<2>;
using SM90_TMA_LOAD_3D = emulator::TmaLoad<3>;
using SM90_TMA_LOAD_5D = emulator::TmaLoad<5>;
using SM90_TMA_LOAD = emulator::TmaLoadOfAnyRank;
using SM90_TMA_LOAD_MULTICAST = emulator::TmaMulticast;
inline uint32_t cast_smem_ptr_to_uint(void const* p) { return emulator::shared_address(p); }
inline void cluster_arrive_relaxed() { emulator::arrive_at_cluster(); }
inline void cluster_wait() { emulator::wait_for_cluster(); }
}  // namespace cute
