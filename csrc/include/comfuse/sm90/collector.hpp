// The collector: the producer warpgroup's fourth warp, which does what column and full reductions need beyond
// a warp, so that no consumer waits for another, or for global memory.
//
// For each tile of its CTA it merges the partial States of the team's warps (collector_memory.hpp), leaves
// the tile's States in the workspace and counts the arrival.  The collector that arrives last for a column
// block, or of all, marks it as finished here; this CTA's consumers run the tail when they have no tiles left
// (column_tails.hpp).  Everything is merged in index order: a result does not depend on who came last.
//
// It waits for consumers of its own CTA only, and they for it to free their buffers: it takes no part in any
// wait between CTAs.
#pragma once

#include <algorithm>

#include "comfuse/sm90/arrival.hpp"
#include "comfuse/sm90/collector_memory.hpp"
#include "comfuse/sm90/extent.hpp"
#include "comfuse/sm90/state_run.hpp"
#include "comfuse/sm90/workspace.hpp"

namespace comfuse::sm90 {

template <class Kernel>
class Collector {
  using Params = typename Kernel::Params;
  using Item = typename Kernel::Scheduler::Item;
  using Memory = CollectorMemory<Kernel>;
  using Layout = WorkspaceLayout<Kernel>;
  using ColReductions = typename Memory::ColReductions;
  using FullReductions = typename Memory::FullReductions;
  static constexpr int TileM = Kernel::TileM, TileN = Kernel::TileN, kTeams = Kernel::kTeams;
  static constexpr int kTilesN = Kernel::Scheduler::kTilesN;
  static_assert(!Memory::kIsUsed || !Kernel::kBatched, "column and full reductions run over one batch");

 public:
  CF_DEVICE static void run(Params const& params, Memory const& memory,
                            typename Kernel::Scheduler scheduler) {
    for (int word = lane_id(); word < Memory::kFinishedWords; word += 32) memory.finished()[word] = 0;
    __syncwarp();
    for (uint32_t sequence = 0; !scheduler.done(); scheduler.advance(), ++sequence) {
      int const team = sequence % kTeams;
      Item const item = scheduler.item();
      wait(memory.filled(team), sequence / kTeams % 2);
      if (!item.phantom())
        merge_warps(params, memory, item, team, Extent<Kernel>(item, params.m), ColReductions{},
                    FullReductions{});
      arrive(memory.emptied(team));
      if (item.phantom()) continue;
      if constexpr (ColReductions::size > 0) count_columns(params, memory, item);
      if constexpr (FullReductions::size > 0) count_all(params, memory);
    }
    arrive(memory.done());
  }

 private:
  // The columns that a lane has at once, and loads under way: no more than the producers' registers hold.
  static constexpr int kRunBytes = 8, kInFlight = Kernel::kProducerRegisters < 40 ? 2 : 4;
  template <class E>
  static constexpr int kColumns = std::min(kRunBytes / int(sizeof(StateOf<E>)), TileN / 32);

  // ---- from the warps' States to the tile's
  template <class... C, class... F>
  CF_DEVICE static void merge_warps(Params const& params, Memory const& memory, Item const& item, int team,
                                    Extent<Kernel> const& extent, List<C...>, List<F...>) {
    (merge_warps_of_columns<C>(params, memory, item, team, extent), ...);
    (merge_warps_of_all<F>(params, memory, item, team, extent), ...);
  }
  template <class E>
  CF_DEVICE static void merge_warps_of_columns(Params const& params, Memory const& memory, Item const& item,
                                               int team, Extent<Kernel> const& extent) {
    auto* const to = Layout::template columns<E>(params.workspace, Layout::column_tree(params.row_blocks),
                                                 item.row_block) +
                     item.column();
    auto const* const from = memory.template columns<E>(team, 0);
    constexpr int kRun = kColumns<E>;
#pragma unroll 1
    for (int column = lane_id() * kRun; column < TileN; column += 32 * kRun) {
      typename ReductionOf<E>::Monoid::Merger mergers[kRun];
#pragma unroll kInFlight
      for (int w = 0; w < Memory::kWarps; ++w) {
        auto const run = StateRun<StateOf<E>, kRun>::load(from + w * TileN + column);
        add<kRun>(mergers, run, extent.rows_of_warp(w), w == 0);
      }
      finish<E, kRun>(mergers, extent.rows).store(to + column);
    }
  }
  template <int Count, class Merger, class Run>
  CF_DEVICE static void add(Merger (&mergers)[Count], Run const& run, float rows, bool first) {
#pragma unroll
    for (int c = 0; c < Count; ++c) mergers[c].add(run.states[c], rows, first);
  }
  template <class E, int Count, class Merger>
  CF_DEVICE static StateRun<StateOf<E>, Count> finish(Merger const (&mergers)[Count], int rows) {
    StateRun<StateOf<E>, Count> run;
#pragma unroll
    for (int c = 0; c < Count; ++c) run.states[c] = mergers[c].finish(fn::detail::rcp(rows));
    return run;
  }
  template <class E>
  CF_DEVICE static void merge_warps_of_all(Params const& params, Memory const& memory, Item const& item,
                                           int team, Extent<Kernel> const& extent) {
    if (lane_id() != 0) return;
    typename ReductionOf<E>::Monoid::Merger merger;
#pragma unroll kInFlight
    for (int w = 0; w < Memory::kWarps; ++w)
      merger.add(memory.template full<E>(team, w), extent.rows_of_warp(w) * extent.columns, w == 0);
    int64_t const tiles = int64_t(params.row_blocks) * kTilesN;
    Layout::template full<E>(params.workspace, tiles)[int64_t(item.row_block) * kTilesN + item.tile_n] =
        merger.finish(fn::detail::rcp(extent.rows * extent.columns));
  }

  // ---- arrivals
  CF_DEVICE static void count_columns(Params const& params, Memory const& memory, Item const& item) {
    ColumnTree const tree = Layout::column_tree(params.row_blocks);
    uint32_t* const counters = params.workspace.column_counters;
    uint32_t const first = uint32_t(item.tile_n) * tree.counters();
    if (tree.segments > 0) {
      int const segment = tree.segment_of(item.row_block);
      if (!arrives_last(counters + (first + segment), tree.leaves_of(segment))) return;
      merge_segment(params, item.column(), segment, ColReductions{});
    }
    if (arrives_last(counters + (first + tree.top_counter()), tree.tops()))
      mark_finished(memory, item.tile_n);
  }
  CF_DEVICE static void count_all(Params const& params, Memory const& memory) {
    if (arrives_last(params.workspace.full_counter, params.row_blocks * kTilesN))
      mark_finished(memory, kTilesN);
  }
  CF_DEVICE static void mark_finished(Memory const& memory, int bit) {
    if (lane_id() == 0) memory.finished()[bit / 32] |= 1u << bit % 32;
  }

  // ---- from row blocks to their segment of the tree
  template <class... E>
  CF_DEVICE static void merge_segment(Params const& params, int column, int segment, List<E...>) {
    (merge_segment_of<E>(params, column, segment), ...);
  }
  template <class E>
  CF_DEVICE static void merge_segment_of(Params const& params, int first_column, int segment) {
    constexpr int kRun = kColumns<E>;
    using Run = StateRun<StateOf<E>, kRun>;
    ColumnTree const tree = Layout::column_tree(params.row_blocks);
    int const first = tree.first_leaf(segment), leaves = tree.leaves_of(segment);
    int const rows = tree.rows(segment, segment + 1, TileM, params.m);
    int64_t const pitch = int64_t(tree.distance) * Layout::kPitch;
#pragma unroll 1
    for (int column = first_column + lane_id() * kRun; column < first_column + TileN; column += 32 * kRun) {
      auto const* const from = Layout::template columns<E>(params.workspace, tree, first) + column;
      typename ReductionOf<E>::Monoid::Merger mergers[kRun];
#pragma unroll
      for (int base = 0; base < ColumnTree::kSegment; base += kInFlight) {
        Run runs[kInFlight];
#pragma unroll
        for (int b = 0; b < kInFlight; ++b)
          if (base + b < leaves) runs[b] = Run::load_from_others(from + (base + b) * pitch);
#pragma unroll
        for (int b = 0; b < kInFlight; ++b)
          if (base + b < leaves)  // only the last of all leaves may have fewer rows
            add<kRun>(mergers, runs[b], base + b < leaves - 1 ? TileM : rows - (leaves - 1) * TileM,
                      base + b == 0);
      }
      finish<E, kRun>(mergers, rows)
          .store(Layout::template columns<E>(params.workspace, tree, tree.node_of(segment)) + column);
    }
  }
};

}  // namespace comfuse::sm90
