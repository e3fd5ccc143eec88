// What the last tile of a column block, or of all, has to do: merge the States that the tiles have left in
// the workspace, evaluate the tail's expressions and store.  The consumers of the CTA whose collector came
// last do it, all of them, when they have no tiles left; since work is numbered row block by row block,
// hardly any column block is complete much earlier.
#pragma once

#include "comfuse/sm90/collector_memory.hpp"
#include "comfuse/sm90/column_reduce.hpp"
#include "comfuse/sm90/column_source.hpp"
#include "comfuse/sm90/state_run.hpp"
#include "comfuse/sm90/workspace.hpp"

namespace comfuse::sm90 {

// The whole, with the States of all full reductions.
template <class Kernel>
struct WholeSource {
  typename Kernel::Params const& params;
  States<FullReductionsOf<typename Kernel::Program>> states;

  template <int R, Field F>
  CF_DEVICE float read(FullStat<R, F>) const {
    return state_of<R>(states).template get<F>(1.f / (float(params.m) * Kernel::N));
  }
};

template <class Kernel>
class ColumnTails {
  using Params = typename Kernel::Params;
  using Program = typename Kernel::Program;
  using Memory = CollectorMemory<Kernel>;
  using Layout = WorkspaceLayout<Kernel>;
  using ColReductions = typename Memory::ColReductions;
  using FullReductions = typename Memory::FullReductions;
  static constexpr int TileM = Kernel::TileM, TileN = Kernel::TileN, N = Kernel::N;
  static constexpr int kTilesN = Kernel::Scheduler::kTilesN;
  static constexpr int kThreads = 32 * Kernel::kConsumerWarps;

 public:
  // All consumer threads of the CTA.
  CF_DEVICE static void run(Params const& params, Memory const& memory) {
    wait(memory.done(), 0);
#pragma unroll 1
    for (int word = 0; word < Memory::kFinishedWords; ++word) {
#pragma unroll 1
      for (uint32_t bits = memory.finished()[word]; bits != 0; bits &= bits - 1) {
        int const bit = 32 * word + __ffs(bits) - 1;
        if constexpr (ColReductions::size > 0)
          if (bit < kTilesN) finish_columns(params, memory, bit, ColReductions{});
        if constexpr (FullReductions::size > 0)
          if (bit == kTilesN) finish_all(params, memory, FullReductions{});
      }
    }
  }

 private:
  CF_DEVICE static void synchronize() {
    __syncwarp();
    asm volatile("bar.sync %0, %1;" ::"n"(Kernel::kConsumersBarrier), "n"(kThreads) : "memory");
  }

  CF_DEVICE static float inverse(float count) { return count > 0.f ? 1.f / count : 0.f; }

  // ---- columns: a thread has two of them, for a stripe of neighbouring nodes of the tree
  static constexpr int kThreadsOfStripe = TileN / 2, kStripes = kThreads / kThreadsOfStripe;
  static_assert(!Memory::kIsUsed || kStripes <= Memory::kTeams * Memory::kWarps,
                "the stripes' States take the place of the warps'");
  static_assert(CollectedColumnsOf<Program>::size == 0 || TileN <= kThreads, "a thread finishes a column");

  struct Stripes {
    ColumnTree tree;
    int nodes;  // of a stripe
    int m;
    CF_DEVICE explicit Stripes(Params const& params)
        : tree(Layout::column_tree(params.row_blocks)),
          nodes((tree.tops() + kStripes - 1) / kStripes),
          m(params.m) {}
    CF_DEVICE int first(int stripe) const { return min(stripe * nodes, tree.tops()); }
    // Rows of the nodes from first to end.
    CF_DEVICE float rows(int first, int end) const { return tree.rows(first, end, TileM, m); }
  };

  template <class... E>
  CF_DEVICE static void finish_columns(Params const& params, Memory const& memory, int tile_n, List<E...>) {
    Stripes const stripes(params);
    int const thread = threadIdx.x - kWarpgroup;
    synchronize();  // the States of the column block before have been read
    if (thread < kStripes * kThreadsOfStripe) (merge_stripe<E>(params, memory, stripes, tile_n, thread), ...);
    synchronize();
    ColumnSource<Kernel> source{params, tile_n * TileN + thread, {}};
    if (thread < TileN && source.column < N) {
      ((state_of<ReductionOf<E>::index>(source.states) = merge_stripes<E>(memory, stripes, thread)), ...);
      store_row_vectors(source, typename ColTailOf<Program>::Effects{});
    }
  }

  template <class E>
  CF_DEVICE static void merge_stripe(Params const& params, Memory const& memory, Stripes const& stripes,
                                     int tile_n, int thread) {
    constexpr int kInFlight = 64 / sizeof(StateOf<E>);
    using Pair = StateRun<StateOf<E>, 2>;
    int const stripe = thread / kThreadsOfStripe, column = 2 * (thread % kThreadsOfStripe);
    int const first = stripes.first(stripe), end = stripes.first(stripe + 1);
    auto const* const from =
        Layout::template columns<E>(params.workspace, stripes.tree, stripes.tree.first_top()) +
        tile_n * TileN + column;
    typename ReductionOf<E>::Monoid::Merger mergers[2];
#pragma unroll 1
    for (int base = first; base < end; base += kInFlight) {
      Pair pairs[kInFlight];
#pragma unroll
      for (int t = 0; t < kInFlight; ++t)
        if (base + t < end) pairs[t] = Pair::load_from_others(from + int64_t(base + t) * Layout::kPitch);
#pragma unroll
      for (int t = 0; t < kInFlight; ++t) {
        if (base + t >= end) continue;
        float const rows = stripes.rows(base + t, base + t + 1);
#pragma unroll
        for (int c = 0; c < 2; ++c) mergers[c].add(pairs[t].states[c], rows, base + t == first);
      }
    }
    auto* const to = memory.template columns<E>(0, 0) + stripe * TileN + column;
#pragma unroll
    for (int c = 0; c < 2; ++c) to[c] = mergers[c].finish(inverse(stripes.rows(first, end)));
  }

  template <class E>
  CF_DEVICE static StateOf<E> merge_stripes(Memory const& memory, Stripes const& stripes, int column) {
    typename ReductionOf<E>::Monoid::Merger merger;
#pragma unroll
    for (int s = 0; s < kStripes; ++s) {
      int const first = stripes.first(s), end = stripes.first(s + 1);
      if (first < end)
        merger.add(memory.template columns<E>(0, 0)[s * TileN + column], stripes.rows(first, end), s == 0);
    }
    return merger.finish(1.f / stripes.m);
  }

  // ---- all: a thread has neighbouring tiles
  struct Share {
    int64_t tiles, tiles_of_thread;
    int m;
    CF_DEVICE explicit Share(Params const& params)
        : tiles(int64_t(params.row_blocks) * kTilesN),
          tiles_of_thread((tiles + kThreads - 1) / kThreads),
          m(params.m) {}
    CF_DEVICE int64_t first(int thread) const { return min(thread * tiles_of_thread, tiles); }
    // Elements of the tiles from first to end.
    CF_DEVICE float elements(int64_t first, int64_t end) const {
      return float(elements_before(end) - elements_before(first));
    }

   private:
    CF_DEVICE int64_t elements_before(int64_t tile) const {
      int64_t const block = tile / kTilesN, row = block * TileM;
      int const columns = min(N, int(tile - block * kTilesN) * TileN);
      return min(row, int64_t(m)) * N + min(int64_t(TileM), m - row) * columns;
    }
  };

  template <class... E>
  CF_DEVICE static void finish_all(Params const& params, Memory const& memory, List<E...>) {
    Share const share(params);
    int const thread = threadIdx.x - kWarpgroup;
    (merge_tiles<E>(params, memory, share, thread), ...);
    synchronize();
    if (thread == 0) {
      WholeSource<Kernel> source{params, {}};
      ((state_of<ReductionOf<E>::index>(source.states) = merge_shares<E>(memory, share)), ...);
      store_all(source, typename FullTailOf<Program>::Effects{});
    }
  }

  template <class E>
  CF_DEVICE static void merge_tiles(Params const& params, Memory const& memory, Share const& share,
                                    int thread) {
    using Monoid = typename ReductionOf<E>::Monoid;
    constexpr int kInFlight = 8;
    int64_t const first = share.first(thread), end = share.first(thread + 1);
    auto const* const from = Layout::template full<E>(params.workspace, share.tiles);
    typename Monoid::Merger merger;
#pragma unroll 1
    for (int64_t base = first; base < end; base += kInFlight) {
      StateRun<StateOf<E>, 1> runs[kInFlight];
#pragma unroll
      for (int t = 0; t < kInFlight; ++t)
        if (base + t < end) runs[t] = StateRun<StateOf<E>, 1>::load_from_others(from + base + t);
#pragma unroll
      for (int t = 0; t < kInFlight; ++t)
        if (base + t < end)
          merger.add(runs[t].states[0], share.elements(base + t, base + t + 1), base + t == first);
    }
    float const count = share.elements(first, end);
    StateOf<E> const state = reduce_warp<Monoid>(merger.finish(inverse(count)), count);
    int const warp = thread / 32;
    if (lane_id() == 0) memory.template full<E>(warp / Memory::kWarps, warp % Memory::kWarps) = state;
  }

  template <class E>
  CF_DEVICE static StateOf<E> merge_shares(Memory const& memory, Share const& share) {
    typename ReductionOf<E>::Monoid::Merger merger;
#pragma unroll 1
    for (int w = 0; w < Kernel::kConsumerWarps; ++w) {
      int64_t const first = share.first(32 * w), end = share.first(32 * w + 32);
      merger.add(memory.template full<E>(w / Memory::kWarps, w % Memory::kWarps), share.elements(first, end),
                 w == 0);
    }
    return merger.finish(1.f / (float(share.m) * N));
  }

  template <class... S>
  CF_DEVICE static void store_all(WholeSource<Kernel> const& source, List<S...>) {
    (store_one(source, S{}), ...);
  }
  template <int Output, class T, class X>
  CF_DEVICE static void store_one(WholeSource<Kernel> const& source, ScalarStore<Output, T, X>) {
    *static_cast<T*>(source.params.outputs[Output].data) = from_float<T>(evaluate_one(source, X{}));
  }
};

}  // namespace comfuse::sm90
