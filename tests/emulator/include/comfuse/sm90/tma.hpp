// Stands in for the header of this name: TMA of the emulated GPU.
#pragma once

#include "comfuse/sm90/mbarrier.hpp"

namespace comfuse::sm90 {
enum class CacheHint : uint64_t { kNormal, kEvictFirst, kEvictLast };

template <class... Coordinate>
void tma_load(CUtensorMap const& map, uint64_t* barrier, CacheHint, void* to, Coordinate... at) {
  emulator::load_later(&map, barrier, 1u << emulator::own_rank(), to, at...);
}
template <class... Coordinate>
void tma_multicast(CUtensorMap const& map, uint64_t* barrier, CacheHint, uint16_t ctas, void* to,
                   Coordinate... at) {
  emulator::load_later(&map, barrier, ctas, to, at...);
}
}  // namespace comfuse::sm90
