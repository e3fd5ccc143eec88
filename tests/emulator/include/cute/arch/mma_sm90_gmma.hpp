// Stands in for CuTe's header on the host.
#pragma once

#include "cuda_runtime.h"

namespace cute {
namespace SM90::GMMA {
enum class Major { K, MN };
enum class ScaleOut { Zero, One };

#define EMULATOR_WGMMA(N)                                                                                    \
  template <Major A, Major B>                                                                                \
  struct MMA_64x##N##x16_F32BF16BF16_SS                                                                      \
      : emulator::WgmmaOfShared<N, false, A == Major::MN, B == Major::MN> {};                                \
  template <Major A, Major B>                                                                                \
  struct MMA_64x##N##x16_F32F16F16_SS : emulator::WgmmaOfShared<N, true, A == Major::MN, B == Major::MN> {}; \
  template <Major A, Major B>                                                                                \
  struct MMA_64x##N##x16_F32BF16BF16_RS : emulator::WgmmaOfRegisters<N, false, B == Major::MN> {             \
    static_assert(A == Major::K, "registers are K-major");                                                   \
  };                                                                                                         \
  template <Major A, Major B>                                                                                \
  struct MMA_64x##N##x16_F32F16F16_RS : emulator::WgmmaOfRegisters<N, true, B == Major::MN> {                \
    static_assert(A == Major::K, "registers are K-major");                                                   \
  }
EMULATOR_WGMMA(64);
EMULATOR_WGMMA(96);
EMULATOR_WGMMA(128);
EMULATOR_WGMMA(192);
EMULATOR_WGMMA(256);
#undef EMULATOR_WGMMA
}  // namespace SM90::GMMA

inline void warpgroup_arrive() { emulator::wgmma_fence(); }
inline void warpgroup_commit_batch() { emulator::wgmma_commit(); }
template <int Left>
void warpgroup_wait() {
  emulator::wgmma_wait<Left>();
}
inline void warpgroup_fence_operand(float&) {}
}  // namespace cute
