// Barriers in shared memory (PTX's mbarrier) and the barrier of a cluster, as single instructions.
//
// CUTLASS has wrappers of the same kind, as of TMA's loads (tma.hpp).  Their headers bring CuTe's numeric
// types, which is half of what a kernel takes to compile (bench/NOTES.md, section 4).
#pragma once

#include <cstdint>

#include "comfuse/host_device.hpp"

namespace comfuse::sm90 {

// As instructions on shared memory name it.
CF_DEVICE uint32_t shared_address(void const* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// Counts arrivals and the bytes of transfers.  Its waits and arrivals clobber no memory: see `wait` and
// `arrive` of instructions.hpp.
struct Barrier {
  CF_DEVICE static void init(uint64_t const* barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
  }
  // Whether the phase of this parity is over; may sleep a while before it says no.
  CF_DEVICE static bool try_wait(uint64_t const* barrier, uint32_t parity) {
    uint32_t is_over;
    asm volatile(
        "{\n"
        ".reg .pred over;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
        "selp.b32 %0, 1, 0, over;\n"
        "}"
        : "=r"(is_over)
        : "r"(shared_address(barrier)), "r"(parity));
    return is_over != 0;
  }
  CF_DEVICE static void arrive(uint64_t const* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)));
  }
  // At the same place in another CTA of the cluster.
  CF_DEVICE static void arrive(uint64_t const* barrier, uint32_t cta) {
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
        "}" ::"r"(shared_address(barrier)),
        "r"(cta));
  }
  CF_DEVICE static void arrive_and_expect_tx(uint64_t const* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(bytes));
  }
};
// Makes barriers that were initialised known to the cluster and to TMA.
CF_DEVICE void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;"); }

// All threads of a cluster arrive, then wait.
CF_DEVICE void arrive_at_cluster() { asm volatile("barrier.cluster.arrive.relaxed.aligned;"); }
CF_DEVICE void wait_for_cluster() { asm volatile("barrier.cluster.wait.aligned;"); }

}  // namespace comfuse::sm90
