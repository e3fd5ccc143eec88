// The SM's clock at each step of a team's work on each of its tiles, for bench/timeline.py, where
// COMFUSE_TIMELINE is defined; otherwise nothing.
//
// The steps of a tile: its turn to multiply is awaited, has come; all products are issued, and finished; its
// turn to read slots has come; then for each phase the fragments are done, words are published, and awaited.
#pragma once

#include "comfuse/sm90/instructions.hpp"

namespace comfuse::sm90 {

#ifdef COMFUSE_TIMELINE

constexpr int kTimelineCtas = 132, kTimelineTeams = 2, kTimelineTiles = 48, kTimelineSteps = 24;
using TimelineSteps = uint32_t[kTimelineSteps];
static __device__ TimelineSteps timeline_clocks[kTimelineCtas][kTimelineTeams][kTimelineTiles];

class Timeline {
 public:
  // `first`: whether this is the team's first thread, which alone writes.
  CF_DEVICE Timeline(int team, bool first) : first_(first && blockIdx.x < kTimelineCtas), team_(team) {}
  CF_DEVICE void begin() {
    step_ = 0;
    ++tile_;
    mark();
  }
  CF_DEVICE void mark() {
    uint32_t clock;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(clock)::"memory");
    if (first_ && tile_ >= 0 && tile_ < kTimelineTiles && step_ < kTimelineSteps)
      timeline_clocks[blockIdx.x][team_][tile_][step_] = clock;
    ++step_;
  }

 private:
  bool first_;
  int team_, tile_ = -1, step_ = 0;
};

#define COMFUSE_EXPORT_TIMELINE(STEM)                                          \
  CF_API int cf_timeline_##STEM(void* to) {                                    \
    using namespace comfuse::sm90;                                             \
    return cudaMemcpyFromSymbol(to, timeline_clocks, sizeof(timeline_clocks)); \
  }

#else

struct Timeline {
  CF_DEVICE Timeline(int, bool) {}
  CF_DEVICE void begin() {}
  CF_DEVICE void mark() {}
};

#define COMFUSE_EXPORT_TIMELINE(STEM)

#endif

}  // namespace comfuse::sm90
