// The GEMMs of one tile of a chain, by one warpgroup: the first two block by block of the middle's columns,
// behind them further ones (chain_further.hpp).
//
// With two buffers the middle of block j runs while GEMM 1 of block j - 1 and GEMM 0 of block j + 1 do; then
// all is waited for.  With one it runs beside nothing of its own, but beside what the other warpgroups have
// in flight.
//
// Every step waits for all wgmmas: they are done by then, and a loop that always leaves some in flight is one
// whose registers ptxas cannot follow (C7514: it would wait behind every wgmma).  No group is ever empty: an
// empty one is not free.
#pragma once

#include "comfuse/sm90/chain_further.hpp"
#include "comfuse/sm90/chain_handed.hpp"
#include "comfuse/sm90/transpose.hpp"

namespace comfuse::sm90 {

template <class Kernel>
class ChainMainloop {
  using Factors = typename Kernel::Factors;
  using Middle = typename Kernel::Middle;
  using Params = typename Kernel::Params;
  using T = typename Factors::T;
  using Second = typename Factors::Second;
  using Ring = typename Kernel::Ring;
  using Source = MiddleSource<Kernel, Middle, Factors::kProducts>;
  using States = MiddleStates<Middle, Factors::H>;
  static constexpr int kBlocks = Factors::kBlocks, kBlock = Factors::kBlock, kBuffers = Factors::kBuffers;
  static constexpr int kProducts = Factors::kProducts, kSteps = Factors::kSteps;
  static constexpr int kLastColumns = Factors::H - (kBlocks - 1) * kBlock;  // that the last block has

 public:
  using Results = typename Factors::Results;
  struct Tile {
    typename Kernel::Item item;
    uint8_t* rows;  // of X, in shared memory
    uint64_t* rows_empty;
    int row;  // first of the warp's 16 rows in the matrix
    uint8_t* vectors;  // of the program behind: what the middle hands on
  };

  // `vectors`: the middles' values a column.
  CF_DEVICE ChainMainloop(Params const& params, WeightReader<Factors>& weights, Ring& ring,
                          uint8_t const* vectors)
      : params_(params), weights_(weights), ring_(ring), vectors_(vectors) {}

  // The tile's rows have come; `begun` is called as soon as wgmmas are under way.  What the last GEMM gives
  // is first among the results.
  template <class Begun>
  CF_DEVICE void run(Tile const& tile, Results& results, Begun const& begun) {
    run_both(tile, first_of<Second::TileN / 2>(results), begun);
    Factors::for_each_further([&](auto factor) {
      FurtherGemm<Kernel, factor>(params_, weights_, ring_, vectors_).run(tile.item, tile.row, results);
    });
    auto& outer = first_of<Factors::TileN / 2>(results);
    if constexpr (!Factors::Last::kPermuted) transpose(outer);
  }

 private:
  using ResultOfSecond = float[Second::TileN / 2];

  template <class Begun>
  CF_DEVICE void run_both(Tile const& tile, ResultOfSecond& outer, Begun const& begun) {
    rows_ = uniform(shared_address(tile.rows));
    // Rows that wgmmas have taken from registers are read: no fence is needed before TMA overwrites them,
    // which would wait for what the warp has just stored of the tile before.
    if constexpr (Factors::kRowsInRegisters) load_rows();
    multiply_first<0>(0);
    if constexpr (Factors::kRowsInRegisters) free_rows(tile);
    begun();
    MiddleRows<Kernel, Middle> const rows(params_, tile.item, tile.row + lane_id() / 4);
    Source source(params_, rows, vectors_, warp_of_group() * 16);
    finish_first<0>(tile, kBlocks == 1);

    // Whole turns of the buffers between the first step and the last ones.
    constexpr int kLooped = kBlocks > 1 + kBuffers ? (kBlocks - 1 - kBuffers) / kBuffers * kBuffers : 0;
    step<0>(tile, source, outer, 0);
    if constexpr (kLooped > 0) {
#pragma unroll 1
      for (int block = 1; block < 1 + kLooped; block += kBuffers) {
        step<1>(tile, source, outer, block);
        if constexpr (kBuffers == 2) step<2>(tile, source, outer, block + 1);
      }
    }
    last_steps<1 + kLooped>(tile, source, outer);
    multiply_second<true>(outer, kBlocks - 1);
    if constexpr (Kernel::Handed::Effects::size > 0)
      hand_rows<Kernel>(params_, states_.finish(), tile.vectors, tile.row, warp_of_group() * 16);
    finish_second<0>(outer);
  }
  template <int kBlockOfStep>
  CF_DEVICE void last_steps(Tile const& tile, Source& source, ResultOfSecond& outer) {
    if constexpr (kBlockOfStep < kBlocks) {
      step<kBlockOfStep>(tile, source, outer, kBlockOfStep);
      last_steps<kBlockOfStep + 1>(tile, source, outer);
    }
  }

  // The middle of a block, which leaves the block's A of GEMM 1 in `passed_`; with one buffer GEMM 0 of the
  // block too.  `kLike`: a block that has the same buffer and is the first, the last but one or the last if
  // this is.
  template <int kLike>
  CF_DEVICE void step(Tile const& tile, Source& source, ResultOfSecond& outer, int block) {
    constexpr bool kFirst = kLike == 0, kLast = kLike == kBlocks - 1;
    auto& buffer = buffers_[kLike % kBuffers];
    if constexpr (!kFirst) multiply_second<false>(outer, block - 1);
    if constexpr (kBuffers == 1) {
      if constexpr (!kFirst) {
        multiply_first<0>(block);
        finish_second<1>(outer);
        finish_first<0>(tile, kLast);
      }
      run_middle<kLast>(source, buffer, block);
    } else {
      constexpr int kNext = (kLike + 1) % kBuffers;
      if constexpr (!kLast) multiply_first<kNext>(block + 1);
      run_middle<kLast>(source, buffer, block);
      fence_accumulators(buffer);
      // Otherwise ptxas puts most of the middle behind the wait, where it runs beside nothing.
      if constexpr (kBlocks > 1) weights_.separate();
      if constexpr (!kFirst) finish_second<!kLast>(outer);
      if constexpr (!kLast) finish_first<kNext>(tile, kLike + 1 == kBlocks - 1);
      fence_accumulators(buffer);
    }
    if constexpr (States::kOnline && !kFirst) states_.rescale(outer);
    pack_passed<T>(buffer, passed_);
  }

  // ---- GEMM 0
  // X's rows as wgmma's A: the four 8 x 8 matrices of each 16 k's.
  CF_DEVICE void load_rows() {
    int const line = warp_of_group() * 16 + lane_id() % 16;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t* const to = rows_of_thread_ + 4 * step;
      uint32_t const from = rows_ + step / 4 * kBlockBytes + line * kLineBytes +
                            ((step % 4 * 2 + lane_id() / 16) ^ line % 8) * 16;
      load_matrices(to, from);
    }
  }
  CF_DEVICE void free_rows(Tile const& tile) const {
    if (Kernel::rows_are_operand(params_)) return;  // the program behind reads them too
    __syncwarp();
    if (lane_id() == 0) arrive(*tile.rows_empty);
  }
  template <int kBuffer>
  CF_DEVICE void multiply_first(int block) {
    uint64_t const b = wgmma_descriptor<KMajor>(weights_.first(block));
    [[maybe_unused]] uint64_t const a = wgmma_descriptor<KMajor>(rows_);
    forget_accumulators(buffers_[kBuffer]);
    cute::warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      int const within = step % 4 * SharedLayout<KMajor>::kStep;
      auto const second = advance_descriptor(b, step / 4 * kProducts * kBlockBytes + within);
      if constexpr (Factors::kRowsInRegisters)
        wgmma<T, kProducts * kBlock>(rows_of_thread_ + 4 * step, second, buffers_[kBuffer], step > 0);
      else
        wgmma<T, kProducts * kBlock, false, false>(advance_descriptor(a, step / 4 * kBlockBytes + within),
                                                   second, buffers_[kBuffer], step > 0);
    }
    cute::warpgroup_commit_batch();
  }
  // `last`: of the tile's blocks.
  template <int kBuffer>
  CF_DEVICE void finish_first(Tile const& tile, bool last) {
    cute::warpgroup_wait<0>();
    fence_accumulators(buffers_[kBuffer]);
    weights_.free_first();
    if (!last) return;
    if constexpr (Factors::kRowsInRegisters)
      keep_registers(rows_of_thread_);
    else
      free_rows(tile);
  }

  // ---- the middle, which leaves what it passes on in the first product's place
  template <bool kLast>
  CF_DEVICE void run_middle(Source& source, float (&buffer)[kProducts * kBlock / 2], int block) {
    if constexpr (States::kOnline) {
      sweep<typename Middle::First, kLast>(source, buffer, block);
      states_.grow();
      source.columns = states_.shifts();
      sweep<typename Middle::Second, kLast>(source, buffer, block);
      source.columns = source.rows.values;
    } else {
      sweep<Middle, kLast>(source, buffer, block);
    }
  }
  template <class Phase, bool kLast>
  CF_DEVICE void sweep(Source& source, float (&buffer)[kProducts * kBlock / 2], int block) {
    constexpr int kColumns = kLast ? kLastColumns : kBlock;
#pragma unroll
    for (int chunk = 0; chunk < kBlock; chunk += kFragmentColumns) {
      if (chunk >= kColumns) continue;
      HeldSlots<1, Phase::Tiles::size> slots;
      ring_.acquire(slots);
      source.tiles = slots.address[0];
      source.column = block * kBlock + chunk;
#pragma unroll
      for (int p = 0; p < kProducts; ++p) {
#pragma unroll
        for (int n = 0; n < kFragmentValues; ++n) source.acc[p].v[n] = buffer[(p * kBlock + chunk) / 2 + n];
      }
      with_lets(source, typename Phase::Lets{}, [&](auto const& env) {
        states_.add(env, source.column == 0, kColumns - chunk, typename Phase::Effects{});
        leave(env, buffer + chunk / 2, kColumns - chunk, typename Phase::Effects{});
      });
      ring_.release(slots);
    }
  }
  // What a phase leaves in place of the product, of 32 columns of which `existing` do.
  template <class Env, class... E>
  CF_DEVICE static void leave(Env const& env, float* values, int existing, List<E...>) {
    (leave(env, values, existing, E{}), ...);
  }
  template <class Env, class E>
  CF_DEVICE static void leave(Env const&, float*, int, E) {}
  template <class Env, class X>
  CF_DEVICE static void leave(Env const& env, float* values, int, Keep<X>) {
    Fragment const f = evaluate<X>(env);
#pragma unroll
    for (int n = 0; n < kFragmentValues; ++n) values[n] = f.v[n];
  }
  template <class Env, class X>
  CF_DEVICE static void leave(Env const& env, float* values, int existing, Pass<X> effect) {
    pass_on(env, values, existing, effect);
  }

  // ---- GEMM 1
  template <bool kLast>
  CF_DEVICE void multiply_second(ResultOfSecond& outer, int block) {
    constexpr int kStepsOfBlock = ((kLast ? kLastColumns : kBlock) + kWgmmaK - 1) / kWgmmaK;
    uint64_t const b = wgmma_descriptor<typename Second::Major>(weights_.template later<0>(block));
    cute::warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < kStepsOfBlock; ++step)
      wgmma<T, Second::TileN, Second::kMNMajor>(
          passed_ + 4 * step, advance_descriptor(b, step * SharedLayout<typename Second::Major>::kStep),
          outer, block > 0 || step > 0);
    cute::warpgroup_commit_batch();
  }
  // `kFirsts`: GEMMs 0 begun since.
  template <int kFirsts>
  CF_DEVICE void finish_second(ResultOfSecond& outer) {
    cute::warpgroup_wait<0>();
    keep_registers(passed_);
    fence_accumulators(outer);
    weights_.free_later(kFirsts);
  }

  Params const& params_;
  WeightReader<Factors>& weights_;
  Ring& ring_;
  uint8_t const* vectors_;
  uint32_t rows_;  // of the tile, in shared memory
  uint32_t rows_of_thread_[Factors::kRowsInRegisters ? 4 * kSteps : 1];
  float buffers_[kBuffers][kProducts * kBlock / 2];
  uint32_t passed_[kBlock / 4];  // the middle's result as GEMM 1's A
  States states_;
};

}  // namespace comfuse::sm90
