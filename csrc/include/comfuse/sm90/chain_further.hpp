// The GEMMs of a chain behind the second one: where a GEMM's tile is complete a program runs on all of it,
// and what that gives is the A of the next.  They run beside nothing of their own, but beside what the other
// warpgroups have in flight.
#pragma once

#include "comfuse/sm90/chain_factors.hpp"
#include "comfuse/sm90/chain_middle.hpp"
#include "comfuse/sm90/slot_ring.hpp"

namespace comfuse::sm90 {

// A program between two GEMMs of a chain, over the `Columns` of the first.
template <class MiddleT, int Columns>
struct Between {
  using Middle = MiddleT;
  static constexpr int kColumns = Columns, kPadded = (Columns + 63) / 64 * 64;
};
// All of a chain, in the order in which they run.  `Columns`: of the GEMM ahead of the first one here.
template <int Columns, class MiddleT, class GemmT, class FurtherT>
struct ProgramsBetween {
  using type = List<Between<MiddleT, Columns>>;
};
template <int Columns, class MiddleT, class GemmT, class LinkT, class... Rest>
struct ProgramsBetween<Columns, MiddleT, GemmT, List<LinkT, Rest...>>
    : Concatenate<List<Between<MiddleT, Columns>>,
                  typename ProgramsBetween<GemmT::N, typename LinkT::Middle, typename LinkT::Gemm,
                                           List<Rest...>>::type> {};

template <class L>
struct MiddlesOf;
template <class... B>
struct MiddlesOf<List<B...>> {
  using type = List<typename B::Middle...>;
};

// Columns of the program that reads a tile; `otherwise`, where none of these does.
template <class Tile, class... B>
constexpr int columns_between(int otherwise, List<B...>) {
  int columns = otherwise;
  ((columns = reads_leaf<Tile, typename B::Middle> ? B::kColumns : columns), ...);
  return columns;
}
// Bytes of their vectors, of all programs or of those before the one that reads V; and where V lies.
template <class V, class VectorsT, class... B>
constexpr int vector_bytes_between(List<B...>) {
  int bytes = 0;
  bool found = false;
  ((found = found || reads_leaf<V, typename B::Middle>,
    bytes += found ? 0 : vector_bytes<void, 0, B::kPadded>(MiddleOperandsOf<typename B::Middle, VectorsT>{})),
   ...);
  return bytes;
}
template <class V, class VectorsT, class... B>
constexpr int vector_offset_between(List<B...> programs) {
  int within = 0;
  ((within += reads_leaf<V, typename B::Middle>
                  ? vector_bytes<V, 0, B::kPadded>(MiddleOperandsOf<typename B::Middle, VectorsT>{})
                  : 0),
   ...);
  return vector_bytes_between<V, VectorsT>(programs) + within;
}

// The GEMM of the later factor number `kFactor`, and the program ahead of it.
template <class Kernel, int kFactor>
class FurtherGemm {
  using Factors = typename Kernel::Factors;
  using T = typename Factors::T;
  using Factor = typename Factors::template LaterAt<kFactor>;
  using Middle = typename MemberOf<kFactor, typename Kernel::Betweens>::type::Middle;
  static constexpr int kColumns = Factor::K, kTileK = (kColumns + 63) / 64 * 64;
  static constexpr int kSteps = (kColumns + kWgmmaK - 1) / kWgmmaK, kStepsOfBlock = 64 / kWgmmaK;
  static constexpr bool kStays = Factors::Weights::kLater;
  static_assert(Filter<IsReduction, typename Middle::Effects>::type::size == 0, "it reduces nothing");

 public:
  CF_DEVICE FurtherGemm(typename Kernel::Params const& params, WeightReader<Factors>& weights,
                        typename Kernel::Ring& ring, uint8_t const* vectors)
      : params_(params), weights_(weights), ring_(ring), vectors_(vectors) {}

  // `row`: the first of the warp's 16 rows in the matrix.  `results`: what the GEMM before gave, and in its
  // place what this one gives.
  CF_DEVICE void run(typename Kernel::Item const& item, int row, typename Factors::Results& results) {
    auto& values = first_of<kTileK / 2>(results);
    auto& result = first_of<Factor::TileN / 2>(results);
    run_middle(item, row, values);
    uint32_t passed[kTileK / 4];
    pack_passed<T>(values, passed);
    keep_registers(passed);  // all are packed before their registers become the result's
    forget_accumulators(result);
#pragma unroll
    for (int block = 0; block < Factor::kBlocks; ++block) multiply(block, passed, result);
    cute::warpgroup_wait<0>();
    keep_registers(passed);
    fence_accumulators(result);
    weights_.free_later(0);
  }

 private:
  CF_DEVICE void run_middle(typename Kernel::Item const& item, int row, float (&values)[kTileK / 2]) {
    MiddleRows<Kernel, Middle> const rows(params_, item, row + lane_id() / 4);
    MiddleSource<Kernel, Middle, 1> source(params_, rows, vectors_, warp_of_group() * 16);
#pragma unroll
    for (int chunk = 0; chunk < kColumns; chunk += kFragmentColumns) {
      HeldSlots<1, Middle::Tiles::size> slots;
      ring_.acquire(slots);
      source.tiles = slots.address[0];
      source.column = chunk;
#pragma unroll
      for (int n = 0; n < kFragmentValues; ++n) source.acc[0].v[n] = values[chunk / 2 + n];
      with_lets(source, typename Middle::Lets{}, [&](auto const& env) {
        leave(env, values + chunk / 2, kColumns - chunk, typename Middle::Effects{});
      });
      ring_.release(slots);
    }
  }
  template <class Env, class X>
  CF_DEVICE static void leave(Env const& env, float* values, int existing, List<Pass<X>>) {
    pass_on(env, values, existing, Pass<X>{});
  }

  CF_DEVICE void multiply(int block, uint32_t const (&passed)[kTileK / 4],
                          float (&result)[Factor::TileN / 2]) {
    if (!kStays && block > 0) {  // the slots of a ring are freed as soon as can be
      cute::warpgroup_wait<0>();
      weights_.free_later(0);
    }
    uint64_t const b = wgmma_descriptor<typename Factor::Major>(weights_.template later<kFactor>(block));
    cute::warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < kStepsOfBlock; ++i) {
      int const step = block * kStepsOfBlock + i;
      if (step >= kSteps) continue;
      wgmma<T, Factor::TileN, Factor::kMNMajor>(
          passed + 4 * step, advance_descriptor(b, i * SharedLayout<typename Factor::Major>::kStep), result,
          step > 0);
    }
    cute::warpgroup_commit_batch();
  }

  typename Kernel::Params const& params_;
  WeightReader<Factors>& weights_;
  typename Kernel::Ring& ring_;
  uint8_t const* vectors_;
};

}  // namespace comfuse::sm90
