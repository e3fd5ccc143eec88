// Stands in for CUTLASS's header on the host: registers of the CTA, a warp's at a time.
#pragma once

#include "cuda_runtime.h"

namespace cutlass::arch {
inline int registers_at_start() { return 65536 / int(emulator::self().cta->threads.size()) / 8 * 8; }
template <int Count>
void warpgroup_reg_dealloc() {
  static_assert(Count % 8 == 0 && Count >= 24);
  emulator::meet_warp("setmaxnreg", [] {
    if (Count > registers_at_start()) emulator::fail("setmaxnreg.dec takes registers");
    emulator::self().cta->registers += 32 * (registers_at_start() - Count);
    emulator::wake(emulator::self().cta->waiting_for_registers);
  });
}
template <int Count>
void warpgroup_reg_alloc() {
  static_assert(Count % 8 == 0 && Count <= 256);
  emulator::meet_warp("setmaxnreg");
  if (emulator::self().id % 32 == 0) {
    int const more = 32 * (Count - registers_at_start());
    while (emulator::self().cta->registers < more) {
      emulator::self().cta->waiting_for_registers.push_back(&emulator::self());
      emulator::block("registers");
    }
    emulator::self().cta->registers -= more;
  }
  emulator::meet_warp("setmaxnreg");
}
}  // namespace cutlass::arch
