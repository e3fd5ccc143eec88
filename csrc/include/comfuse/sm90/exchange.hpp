// Words that CTAs exchange through a small workspace in global memory, which stays in L2.
//
// A word carries its own validity: the lowest bit of its high half is the parity of the launch.  It is
// written and read whole (relaxed, gpu scope), so data and flag arrive together; there is no fence, no
// counter of arrivals and nothing to reset.  Every word is published in every launch, so that each changes
// its tag from launch to launch.
//
// The parity comes from one counter: each consumer warp adds one when it leaves, modulo twice the
// number of warps, and reads it when it enters, before its own increment.
#pragma once

#include "comfuse/sm90/instructions.hpp"

namespace comfuse::sm90 {

CF_DEVICE void store_relaxed(uint64_t* p, uint64_t v) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
CF_DEVICE uint64_t load_relaxed(uint64_t const* p) {
  uint64_t v;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}

class LaunchParity {
 public:
  LaunchParity() = default;
  // `warps`: consumer warps of the grid.
  CF_DEVICE LaunchParity(uint32_t* counter, uint32_t warps) : counter_(counter), warps_(warps) {
    uint32_t count;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
    tag_ = count < warps ? 1 : 0;
  }
  CF_DEVICE uint32_t tag() const { return tag_; }
  CF_DEVICE void leave() const {
    __syncwarp();
    if (lane_id() == 0)
      asm volatile("red.relaxed.gpu.global.inc.u32 [%0], %1;" ::"l"(counter_), "r"(2 * warps_ - 1)
                   : "memory");
  }

 private:
  uint32_t* counter_ = nullptr;
  uint32_t warps_ = 0, tag_ = 0;
};

struct Exchange {
  CF_DEVICE static void publish(uint64_t* p, uint64_t word, uint32_t tag) {
    store_relaxed(p, (word & ~kTag) | uint64_t(tag) << 32);
  }

  // Between a phase's publishing and its first poll.  Polls are rare on purpose: on words that are still
  // being written they slow down all that L2 does, and the kernel with it.
  CF_DEVICE static void rest() { __nanosleep(kFirstPoll); }

  // Loads the words at from, from + pitch, ..., `count` of them or as many as there is room for, again and
  // again until a whole warp has all of its own.
  template <int InFlight>
  CF_DEVICE static void await(uint64_t (&words)[InFlight], uint64_t const* from, int64_t pitch, int count,
                              uint32_t tag) {
    auto arrived = [&] {
      bool all = true;
#pragma unroll
      for (int t = 0; t < InFlight; ++t)
        if (t < count) words[t] = load_relaxed(from + t * pitch);
#pragma unroll
      for (int t = 0; t < InFlight; ++t)
        if (t < count) all = all && (uint32_t(words[t] >> 32) & 1u) == tag;
      return __all_sync(kFullWarp, all);
    };
    for (Deadline deadline; !arrived(); deadline.check()) __nanosleep(kNextPoll);
  }

  CF_DEVICE static uint64_t untagged(uint64_t word) { return word & ~kTag; }

 private:
  static constexpr uint64_t kTag = uint64_t(1) << 32;
  static constexpr unsigned kFirstPoll = 700, kNextPoll = 100;  // nanoseconds
};

}  // namespace comfuse::sm90
