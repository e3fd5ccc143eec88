// TMA: a box of a tensor to shared memory, by one thread; the barrier counts its bytes.  `at`: its first
// element, the fastest dimension first.
#pragma once

#include <cuda.h>

#include "comfuse/sm90/mbarrier.hpp"

namespace comfuse::sm90 {

// What L2 makes of the lines: createpolicy's results for whole tensors.
enum class CacheHint : uint64_t {
  kNormal = 0x1000000000000000,
  kEvictFirst = 0x12F0000000000000,
  kEvictLast = 0x14F0000000000000,
};

#define CF_TMA "cp.async.bulk.tensor."
#define CF_TMA_TO ".shared::cluster.global.mbarrier::complete_tx::bytes"
CF_DEVICE void tma_load(CUtensorMap const& map, uint64_t* barrier, CacheHint hint, void* to, int x, int y) {
  asm volatile(CF_TMA "2d" CF_TMA_TO
                      ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(to)),
               "l"(&map), "r"(shared_address(barrier)), "r"(x), "r"(y), "l"(uint64_t(hint))
               : "memory");
}
CF_DEVICE void tma_load(CUtensorMap const& map, uint64_t* barrier, CacheHint hint, void* to, int x, int y,
                        int z) {
  asm volatile(CF_TMA "3d" CF_TMA_TO
                      ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(to)),
               "l"(&map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "l"(uint64_t(hint))
               : "memory");
}
CF_DEVICE void tma_load(CUtensorMap const& map, uint64_t* barrier, CacheHint hint, void* to, int x, int y,
                        int z, int u, int v) {
  asm volatile(CF_TMA "5d" CF_TMA_TO
                      ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(shared_address(to)),
               "l"(&map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v),
               "l"(uint64_t(hint))
               : "memory");
}

// To the same place in the CTAs of the cluster that `ctas` has a bit for, and to their barriers.
#define CF_TMA_TO_MANY CF_TMA_TO ".multicast::cluster.L2::cache_hint"
CF_DEVICE void tma_multicast(CUtensorMap const& map, uint64_t* barrier, CacheHint hint, uint16_t ctas,
                             void* to, int x, int y) {
  asm volatile(CF_TMA "2d" CF_TMA_TO_MANY " [%0], [%1, {%4, %5}], [%2], %3, %6;" ::"r"(shared_address(to)),
               "l"(&map), "r"(shared_address(barrier)), "h"(ctas), "r"(x), "r"(y), "l"(uint64_t(hint))
               : "memory");
}
CF_DEVICE void tma_multicast(CUtensorMap const& map, uint64_t* barrier, CacheHint hint, uint16_t ctas,
                             void* to, int x, int y, int z) {
  asm volatile(CF_TMA "3d" CF_TMA_TO_MANY
                      " [%0], [%1, {%4, %5, %6}], [%2], %3, %7;" ::"r"(shared_address(to)),
               "l"(&map), "r"(shared_address(barrier)), "h"(ctas), "r"(x), "r"(y), "r"(z), "l"(uint64_t(hint))
               : "memory");
}
CF_DEVICE void tma_multicast(CUtensorMap const& map, uint64_t* barrier, CacheHint hint, uint16_t ctas,
                             void* to, int x, int y, int z, int u, int v) {
  asm volatile(CF_TMA "5d" CF_TMA_TO_MANY
                      " [%0], [%1, {%4, %5, %6, %7, %8}], [%2], %3, %9;" ::"r"(shared_address(to)),
               "l"(&map), "r"(shared_address(barrier)), "h"(ctas), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v),
               "l"(uint64_t(hint))
               : "memory");
}
#undef CF_TMA
#undef CF_TMA_TO
#undef CF_TMA_TO_MANY

}  // namespace comfuse::sm90
