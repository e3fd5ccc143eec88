// Row reductions whose results are only stored.  Nobody waits for them: each warp of a tile leaves its rows'
// States in the workspace and counts its arrival; of the warps that have the same rows, one in each tile of
// the row block, the last to arrive merges them.  N may be as large as it likes, and the tiles need not run
// at the same time.
#pragma once

#include "comfuse/sm90/arrival.hpp"
#include "comfuse/sm90/workspace.hpp"

namespace comfuse::sm90 {

template <class Kernel>
struct RowTailWords {
  using Layout = WorkspaceLayout<Kernel>;
  using Item = typename Kernel::Scheduler::Item;
  static constexpr int N = Kernel::N, TileM = Kernel::TileM, TileN = Kernel::TileN;
  static constexpr int kTilesN = Kernel::Scheduler::kTilesN;

  // Of one row, tile by tile: TileM words apart.
  template <class E>
  CF_DEVICE static uint64_t* words(Workspace const& workspace, int row_blocks, Item const& item, int row) {
    constexpr int kReduction = position_in<E, RowTailReductionsOf<typename Kernel::Program>>;
    return workspace.row_tail +
           (int64_t(kReduction) * row_blocks + item.row_block) * Layout::kWordsPerRowBlock + row;
  }

  // True in the last of the warps that have these rows.
  CF_DEVICE static bool arrives_last(Workspace const& workspace, Item const& item, int warp) {
    return sm90::arrives_last(
        workspace.row_tail_counters + int64_t(item.row_block) * Layout::kWarpsOfTile + warp, kTilesN);
  }

  // In index order.
  template <class Monoid>
  CF_DEVICE static typename Monoid::State merge(uint64_t const* words) {
    constexpr int kInFlight = kTilesN < 16 ? kTilesN : 16;
    typename Monoid::Merger merger;
#pragma unroll 1
    for (int base = 0; base < kTilesN; base += kInFlight) {
      uint64_t word[kInFlight];
#pragma unroll
      for (int t = 0; t < kInFlight; ++t)
        if (base + t < kTilesN) word[t] = __ldcg(words + int64_t(base + t) * TileM);
#pragma unroll
      for (int t = 0; t < kInFlight; ++t) {
        float const columns = base + t == kTilesN - 1 ? N - (kTilesN - 1) * TileN : TileN;
        if (base + t < kTilesN) merger.add(Monoid::State::unpack(word[t]), columns, base + t == 0);
      }
    }
    return merger.finish(1.f / N);
  }
};

}  // namespace comfuse::sm90
