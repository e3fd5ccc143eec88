// CUTLASS's instruction layer (wgmma, setmaxnreg) and the instructions beside it.  Nothing above that layer
// is included: CUTLASS's collectives cost a minute of compile time a kernel.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include <cute/arch/mma_sm90_gmma.hpp>
#include <utility>

#include "comfuse/numeric.hpp"
#include "comfuse/sm90/mbarrier.hpp"
#include "comfuse/sm90/tma.hpp"

namespace comfuse::sm90 {

constexpr unsigned kFullWarp = 0xffffffffu;
constexpr int kWarpgroup = 128;

CF_DEVICE int lane_id() { return threadIdx.x & 31; }
// Shuffled, so that the compiler knows it to be the same for the whole warp.
CF_DEVICE int warp_id() { return __shfl_sync(kFullWarp, int(threadIdx.x) / 32, 0); }
CF_DEVICE uint32_t uniform(uint32_t x) { return __shfl_sync(kFullWarp, x, 0); }

// Read anew each time: it need not stay in a register.
CF_DEVICE int grid_size() {
  int size;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(size));
  return size;
}

// Ends the kernel with an illegal-address error, which the host sees at its next call.  Not `trap`:
// wherever one is reachable, ptxas keeps the consumer warpgroups to the 168 registers a thread starts
// with, whatever setmaxnreg says, and spills.
CF_DEVICE void fail() { asm volatile("st.volatile.global.u32 [%0], 0;" ::"l"(0ull) : "memory"); }

// Bounds a spin by time: a lost peer or a broken protocol fails loudly, it does not hang the GPU.
class Deadline {
 public:
  CF_DEVICE void check() {
    if (++spins_ & 1023) return;
    long long const now = clock64();
    if (start_ == 0) start_ = now;
    if (now - start_ > kLimit) fail();
  }

 private:
  static constexpr long long kLimit = 1ll << 34;  // about 9 s
  long long start_ = 0;
  uint32_t spins_ = 0;
};

// What the barrier guards must not move across it.
CF_DEVICE void wait(uint64_t const& barrier, uint32_t phase) {
  if (!Barrier::try_wait(&barrier, phase)) {
    Deadline deadline;
    while (!Barrier::try_wait(&barrier, phase)) deadline.check();
  }
  asm volatile("" ::: "memory");
}
CF_DEVICE void arrive(uint64_t const& barrier) {
  asm volatile("" ::: "memory");
  Barrier::arrive(&barrier);
}
CF_DEVICE void arrive_at(uint64_t const& barrier, uint32_t cta) {
  asm volatile("" ::: "memory");
  Barrier::arrive(&barrier, cta);
}

// A position in a ring of `Slots`, with the phase bit that its barrier has on this lap.
template <int Slots>
struct RingPosition {
  uint32_t slot = 0, phase = 0;
  CF_DEVICE void advance() {
    if (++slot == Slots) slot = 0, phase ^= 1;
  }
  CF_DEVICE void advance(uint32_t count) {
    slot += count;
    phase ^= (slot / Slots) & 1;
    slot %= Slots;
  }
};

// Teams that take turns, each on a named barrier: `await` returns once the team before has passed the
// turn.  Before its first await the last team passes to team 0.  `Use` numbers independent turns.
// The barrier counts warps: one that came to it in two parts would count twice.
template <int Teams, int ThreadsOfTeam, int Use>
struct Turns {
  CF_DEVICE static void await(int team) {
    __syncwarp();
    asm volatile("bar.sync %0, %1;" ::"r"(kFirst + team), "n"(2 * ThreadsOfTeam) : "memory");
  }
  CF_DEVICE static void pass(int team) {
    int const next = team == Teams - 1 ? 0 : team + 1;
    __syncwarp();
    asm volatile("bar.arrive %0, %1;" ::"r"(kFirst + next), "n"(2 * ThreadsOfTeam) : "memory");
  }

 private:
  static constexpr int kFirst = 1 + Use * Teams;  // barrier 0 is __syncthreads
};

// Orders this thread's reads and writes of shared memory before what TMA or wgmma does there next.
CF_DEVICE void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Four 8 x 8 matrices of 16-bit elements: lane l says where row l % 8 of matrix l / 8 lies, 16 bytes.
CF_DEVICE void load_matrices(uint32_t* words, uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared_address)
               : "memory");
}
CF_DEVICE void load_matrices(uint32_t* words, uint8_t const* from) {
  load_matrices(words, shared_address(from));
}

// One warpgroup's wgmma, 64 rows by N columns by 16 products, both operands in shared memory.
template <class T, int N, cute::SM90::GMMA::Major MajorA, cute::SM90::GMMA::Major MajorB>
struct Wgmma;
#define CF_WGMMA(T, N, NAME)                                                \
  template <cute::SM90::GMMA::Major MajorA, cute::SM90::GMMA::Major MajorB> \
  struct Wgmma<T, N, MajorA, MajorB> {                                      \
    using Op = cute::SM90::GMMA::NAME<MajorA, MajorB>;                      \
  };
CF_WGMMA(bf16, 64, MMA_64x64x16_F32BF16BF16_SS)
CF_WGMMA(bf16, 96, MMA_64x96x16_F32BF16BF16_SS)
CF_WGMMA(bf16, 128, MMA_64x128x16_F32BF16BF16_SS)
CF_WGMMA(bf16, 192, MMA_64x192x16_F32BF16BF16_SS)
CF_WGMMA(bf16, 256, MMA_64x256x16_F32BF16BF16_SS)
CF_WGMMA(fp16, 64, MMA_64x64x16_F32F16F16_SS)
CF_WGMMA(fp16, 96, MMA_64x96x16_F32F16F16_SS)
CF_WGMMA(fp16, 128, MMA_64x128x16_F32F16F16_SS)
CF_WGMMA(fp16, 192, MMA_64x192x16_F32F16F16_SS)
CF_WGMMA(fp16, 256, MMA_64x256x16_F32F16F16_SS)
#undef CF_WGMMA

// The columns of a tile's first wgmma; another one has the rest, where no shape of this list has them all.
// CuTe's list of every eighth width takes seconds to compile.
constexpr int columns_of_first_wgmma(int columns) {
  for (int one : {64, 96, 128, 192, 256})
    if (one == columns) return columns;
  return columns > 256 ? 192 : 128;
}

template <class Op, int First, int Size, size_t... I>
CF_DEVICE void wgmma(uint64_t a, uint64_t b, float (&d)[Size], cute::SM90::GMMA::ScaleOut scale,
                     std::index_sequence<I...>) {
  Op::fma(a, b, d[First + I]..., scale);
}
// `First`: of the accumulators that it has.
template <class T, int N, bool MNMajorA, bool MNMajorB, int First = 0, int Size>
CF_DEVICE void wgmma(uint64_t a, uint64_t b, float (&d)[Size], bool accumulate) {
  using cute::SM90::GMMA::Major;
  using cute::SM90::GMMA::ScaleOut;
  static_assert(First + N / 2 <= Size);
  using Op = typename Wgmma<T, N, MNMajorA ? Major::MN : Major::K, MNMajorB ? Major::MN : Major::K>::Op;
  wgmma<Op, First>(a, b, d, accumulate ? ScaleOut::One : ScaleOut::Zero, std::make_index_sequence<N / 2>{});
}

// The same with A in registers, four words a thread (ldmatrix.x4 loads them).
template <class T, int N, cute::SM90::GMMA::Major MajorB>
struct WgmmaOfRegisters;
#define CF_WGMMA(T, N, NAME)                                               \
  template <cute::SM90::GMMA::Major MajorB>                                \
  struct WgmmaOfRegisters<T, N, MajorB> {                                  \
    using Op = cute::SM90::GMMA::NAME<cute::SM90::GMMA::Major::K, MajorB>; \
  };
CF_WGMMA(bf16, 64, MMA_64x64x16_F32BF16BF16_RS)
CF_WGMMA(bf16, 128, MMA_64x128x16_F32BF16BF16_RS)
CF_WGMMA(bf16, 192, MMA_64x192x16_F32BF16BF16_RS)
CF_WGMMA(bf16, 256, MMA_64x256x16_F32BF16BF16_RS)
CF_WGMMA(fp16, 64, MMA_64x64x16_F32F16F16_RS)
CF_WGMMA(fp16, 128, MMA_64x128x16_F32F16F16_RS)
CF_WGMMA(fp16, 192, MMA_64x192x16_F32F16F16_RS)
CF_WGMMA(fp16, 256, MMA_64x256x16_F32F16F16_RS)
#undef CF_WGMMA

template <class Op, int Size, size_t... I>
CF_DEVICE void wgmma(uint32_t const* a, uint64_t b, float (&d)[Size], cute::SM90::GMMA::ScaleOut scale,
                     std::index_sequence<I...>) {
  Op::fma(a[0], a[1], a[2], a[3], b, d[I]..., scale);
}
template <class T, int N, bool MNMajorB = false>
CF_DEVICE void wgmma(uint32_t const* a, uint64_t b, float (&d)[N / 2], bool accumulate) {
  using cute::SM90::GMMA::Major;
  using cute::SM90::GMMA::ScaleOut;
  using Op = typename WgmmaOfRegisters<T, N, MNMajorB ? Major::MN : Major::K>::Op;
  wgmma<Op>(a, b, d, accumulate ? ScaleOut::One : ScaleOut::Zero, std::make_index_sequence<N / 2>{});
}

template <int Size>
CF_DEVICE void fence_accumulators(float (&d)[Size]) {
#pragma unroll
  for (int i = 0; i < Size; ++i) cute::warpgroup_fence_operand(d[i]);
}
// What a wgmma is to overwrite: accumulators that keep parts of what they held tie ptxas' hands (C7511).
template <int Size>
CF_DEVICE void forget_accumulators(float (&d)[Size]) {
#pragma unroll
  for (int i = 0; i < Size; ++i) asm volatile("" : "=f"(d[i]));
}
// Keeps A's registers as they are until here, where wgmmas have been waited for that read them.
template <int Size>
CF_DEVICE void keep_registers(uint32_t const (&a)[Size]) {
#pragma unroll
  for (int i = 0; i < Size; ++i) asm volatile("" ::"r"(a[i]) : "memory");
}

}  // namespace comfuse::sm90
