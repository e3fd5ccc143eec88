// Counters of arrivals in the workspace: whoever arrives last finishes what all have left there.  Nobody
// waits, so it does not matter which tiles run at the same time.
#pragma once

#include "comfuse/sm90/instructions.hpp"

namespace comfuse::sm90 {

// A whole warp arrives; true for the last of `count` arrivals.  The counter is then zero again, for the next
// launch.
//
// What the warp's lanes have written, and what they have seen other threads of the CTA write, is seen by the
// warp that arrives last: __syncwarp orders the lanes' writes before lane 0's release, which covers them; its
// acquire comes before the loads that follow the second __syncwarp.  Those must not be served by L1, which
// may hold the same words of an earlier launch: read them from L2.
CF_DEVICE bool arrives_last(uint32_t* counter, uint32_t count) {
  __syncwarp();
  uint32_t before = 0;
  if (lane_id() == 0)
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(counter), "r"(count - 1)
                 : "memory");
  before = __shfl_sync(kFullWarp, before, 0);
  __syncwarp();
  return before == count - 1;
}

}  // namespace comfuse::sm90
