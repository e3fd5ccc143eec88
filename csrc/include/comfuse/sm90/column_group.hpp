// Column reductions that phases read: the tiles of a column block exchange one 64-bit word a column and tile
// (exchange.hpp), and each tile merges those of all row blocks itself, in index order.  The collector has no
// part in it: a team of warps merges its own partial States, a thread a column, and waits for nobody's turn.
//
// Nothing can deadlock if all tiles run at once, each CTA having at most one (the launcher sees to it): a
// tile waits for what the others publish behind the same phase, and whatever they wait for before that lies
// in an earlier one.
#pragma once

#include "comfuse/sm90/column_memory.hpp"
#include "comfuse/sm90/column_source.hpp"
#include "comfuse/sm90/exchange.hpp"
#include "comfuse/sm90/extent.hpp"
#include "comfuse/sm90/workspace.hpp"

namespace comfuse::sm90 {

template <class Kernel>
class ColumnGroup {
  using Params = typename Kernel::Params;
  using Program = typename Kernel::Program;
  using Item = typename Kernel::Scheduler::Item;
  using Layout = WorkspaceLayout<Kernel>;
  using Memory = ColumnMemory<Kernel>;
  using Reductions = typename Memory::Reductions;
  static constexpr int TileM = Kernel::TileM, TileN = Kernel::TileN;
  static constexpr int kThreads = 32 * Kernel::kConsumerWarps;
  static_assert(Reductions::size == 0 || (Kernel::kTeams == 1 && !Kernel::kBatched),
                "one tile a CTA, and column reductions run over one batch");

 public:
  CF_DEVICE ColumnGroup(Params const& params, Memory const& memory, Item const& item)
      : params_(params), memory_(memory), item_(item), thread_(threadIdx.x - kWarpgroup) {}

  // Behind the phase of these effects: all consumers of the CTA have left their warps' States.
  template <class... E>
  CF_DEVICE void publish(uint32_t tag, List<E...>) const {
    synchronize();
    Extent<Kernel> const extent(item_, params_.m);
    (publish_one<E>(tag, extent), ...);
  }
  // Then: the finished States lie in the memory, as those of warp 0.
  template <class... E>
  CF_DEVICE void gather(uint32_t tag, List<E...>) const {
    (gather_one<E>(tag), ...);
    synchronize();
  }

  // Behind all phases.
  CF_DEVICE void run_tail() const {
    if (item_.row_block == 0) store_all(Reductions{});
  }

 private:
  // As many loads under way as there are registers for beside the accumulators.
  static constexpr int kInFlight = Kernel::kProducts * TileN > 128 ? 8 : 16;

  CF_DEVICE static void synchronize() {
    __syncwarp();
    asm volatile("bar.sync %0, %1;" ::"n"(Kernel::kConsumersBarrier), "n"(kThreads) : "memory");
  }
  // Of one row block, this column block's.
  template <class E>
  CF_DEVICE uint64_t* words(int row_block) const {
    constexpr int kReduction = position_in<E, Reductions>;
    return params_.workspace.column_group +
           (int64_t(kReduction) * params_.row_blocks + row_block) * Layout::kPitch + item_.column();
  }

  template <class E>
  CF_DEVICE void publish_one(uint32_t tag, Extent<Kernel> const& extent) const {
    for (int column = thread_; column < TileN; column += kThreads) {
      typename ReductionOf<E>::Monoid::Merger merger;
#pragma unroll
      for (int w = 0; w < Memory::kWarps; ++w)
        merger.add(memory_.template states<E>(w)[column], extent.rows_of_warp(w), w == 0);
      auto const state = merger.finish(fn::detail::rcp(extent.rows));
      Exchange::publish(words<E>(item_.row_block) + column, state.pack(), tag);
    }
  }

  template <class E>
  CF_DEVICE void gather_one(uint32_t tag) const {
    using State = StateOf<E>;
    for (int column = thread_; column < TileN; column += kThreads) {
      typename ReductionOf<E>::Monoid::Merger merger;
#pragma unroll 1
      for (int base = 0; base < params_.row_blocks; base += kInFlight) {
        uint64_t word[kInFlight];
        int const count = params_.row_blocks - base;
        Exchange::await(word, words<E>(base) + column, Layout::kPitch, count, tag);
#pragma unroll
        for (int b = 0; b < kInFlight; ++b) {
          float const rows = min(TileM, params_.m - (base + b) * TileM);
          if (b < count) merger.add(State::unpack(Exchange::untagged(word[b])), rows, base + b == 0);
        }
      }
      memory_.template states<E>(0)[column] = merger.finish(1.f / params_.m);
    }
  }

  template <class... E>
  CF_DEVICE void store_all(List<E...>) const {
    for (int column = thread_; column < TileN; column += kThreads) {
      ColumnSource<Kernel> source{params_, item_.column() + column, {}};
      if (source.column >= Kernel::N) return;
      ((state_of<ReductionOf<E>::index>(source.states) = memory_.template states<E>(0)[column]), ...);
      store_row_vectors(source, typename ColTailOf<Program>::Effects{});
    }
  }

  Params const& params_;
  Memory const& memory_;
  Item const& item_;
  int thread_;  // among the consumers
};

}  // namespace comfuse::sm90
