// Row reductions across the tiles of a row block: the CTAs that hold them exchange one 64-bit word a
// row and tile through a small workspace in global memory, which stays in L2.
//
// A word carries its own validity: the lowest bit of its high half is the parity of the launch.  It is
// written and read whole (relaxed, gpu scope), so data and flag arrive together; there is no fence, no
// counter of arrivals and nothing to reset.  Every tile publishes all its rows in every launch, those
// beyond M too, so that each word changes its tag from launch to launch.
//
// The parity comes from one counter: each consumer warp adds one when it leaves, modulo twice the
// number of warps, and reads it when it enters, before its own increment.
//
// Nothing can deadlock if all CTAs are resident at once (the launch is cooperative) and a row block's
// tiles number at most the CTAs: a tile waits for tiles of its own row block only, and whatever a CTA
// has to finish before it reaches one of those lies in an earlier row block.
#pragma once

#include "comfuse/sm90/monoids.hpp"

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

// The words of one reduction and one row block: TilesN groups of TileM words.
template <int N, int TileM, int TileN, int TilesN>
struct RowGroup {
  CF_DEVICE static void publish(uint64_t* words, int tile_n, int row, uint64_t word, uint32_t tag) {
    store_relaxed(words + tile_n * TileM + row, (word & ~kTag) | uint64_t(tag) << 32);
  }

  // Between a phase's publishing and its first poll.  Polls are rare on purpose: on words that are still
  // being written they slow down all that L2 does, and the kernel with it.
  CF_DEVICE static void rest() { __nanosleep(kFirstPoll); }

  // Waits for the row's words of all tiles and merges them in index order.
  template <class Monoid>
  CF_DEVICE static typename Monoid::State gather(uint64_t const* words, int row, uint32_t tag) {
    typename Monoid::Merger merger;
#pragma unroll
    for (int base = 0; base < TilesN; base += kInFlight) {
      uint64_t word[kInFlight];
      auto arrived = [&] {
        bool all = true;
#pragma unroll
        for (int t = 0; t < kInFlight; ++t)
          if (base + t < TilesN) word[t] = load_relaxed(words + (base + t) * TileM + row);
#pragma unroll
        for (int t = 0; t < kInFlight; ++t)
          if (base + t < TilesN) all = all && (uint32_t(word[t] >> 32) & 1u) == tag;
        return __all_sync(kFullWarp, all);
      };
      for (Deadline deadline; !arrived(); deadline.check()) __nanosleep(kNextPoll);
#pragma unroll
      for (int t = 0; t < kInFlight; ++t) {
        if (base + t >= TilesN) continue;
        constexpr int kLast = N - (TilesN - 1) * TileN;
        float count = base + t == TilesN - 1 ? kLast : TileN;
        merger.add(Monoid::State::unpack(word[t] & ~kTag), count, base + t == 0);
      }
    }
    return merger.finish(1.f / N);
  }

 private:
  static constexpr uint64_t kTag = uint64_t(1) << 32;
  static constexpr int kInFlight = 8;
  static constexpr unsigned kFirstPoll = 700, kNextPoll = 100;  // nanoseconds
};

}  // namespace comfuse::sm90
