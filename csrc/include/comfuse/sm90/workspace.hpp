// The one layout of a kernel's workspace in global memory: for the host, which sizes it, and the device.
//
// It is zeroed once and serves all launches with one number of row blocks.  Nothing is ever reset: words that
// CTAs exchange carry the launch's parity, every counter wraps to zero with the last arrival, and all other
// words are written before they are read.
#pragma once

#include "comfuse/sm90/cluster_group.hpp"
#include "comfuse/sm90/column_tree.hpp"
#include "comfuse/sm90/reductions.hpp"

namespace comfuse::sm90 {

// Where the parts begin, as kernel parameters.
struct Workspace {
  uint32_t* parity_counter;
  uint64_t* row_group;  // [fed-back row reduction][row block][tile of it][row] words
  uint64_t* column_group;  // [exchanged column reduction][row block][column] words
  uint64_t* row_tail;  // [other row reduction][row block][tile of it][row] words
  uint32_t* row_tail_counters;  // [row block][warp of a tile]: tiles whose warp has arrived
  char* columns;  // [collected column reduction][node of the tree][column] States
  uint32_t* column_counters;  // [column block][segments, then all]: row blocks, or segments, that are done
  char* full;  // [full reduction][tile] States
  uint32_t* full_counter;  // tiles that are done
};

class WorkspaceCursor {
 public:
  explicit WorkspaceCursor(void* memory) : begin_(reinterpret_cast<uintptr_t>(memory)) {}
  template <class T>
  void take(T*& part, int64_t count) {
    part = reinterpret_cast<T*>(begin_ + uintptr_t(bytes_));
    bytes_ += (count * int64_t(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
  }
  int64_t bytes() const { return bytes_; }

 private:
  static constexpr int64_t kAlignment = 128;
  uintptr_t begin_;
  int64_t bytes_ = 0;
};

template <class Kernel>
class WorkspaceLayout {
  using Program = typename Kernel::Program;
  static constexpr int kTilesN = Kernel::Scheduler::kTilesN;

  template <class E, class... X>
  static constexpr int bytes_before(List<X...>) {
    int bytes = 0;
    bool found = false;
    ((found = found || std::is_same<E, X>::value, bytes += found ? 0 : int(sizeof(StateOf<X>))), ...);
    return bytes;
  }

 public:
  static constexpr bool kHasRowGroup =
      FedBackOf<Program>::size > 0 && kTilesN > 1 && !ClusterGroup<Kernel>::kIsUsed;
  static constexpr bool kHasRowTail = RowTailReductionsOf<Program>::size > 0 && kTilesN > 1;
  static constexpr bool kHasColumnGroup = ExchangedColumnsOf<Program>::size > 0;
  static constexpr bool kHasColumns = CollectedColumnsOf<Program>::size > 0;
  static constexpr bool kHasFull = FullReductionsOf<Program>::size > 0;
  static constexpr bool kExchanges = kHasRowGroup || kHasColumnGroup;  // CTAs wait for each other
  static constexpr bool kIsEmpty = !kExchanges && !kHasRowTail && !kHasColumns && !kHasFull;
  static constexpr int kWordsPerRowBlock = kTilesN * Kernel::TileM;
  static constexpr int kWarpsOfTile = 4 * Kernel::kTeamSize;
  static constexpr int kPitch = kTilesN * Kernel::TileN;  // columns, those beyond N too

  CF_HD static ColumnTree column_tree(int row_blocks) { return {row_blocks, kTilesN}; }

  // The parts at `memory`; returns the bytes from there to their end.
  static int64_t place(Workspace* to, void* memory, int row_blocks) {
    WorkspaceCursor cursor(memory);
    ColumnTree const tree = column_tree(row_blocks);
    int64_t const words = int64_t(row_blocks) * kWordsPerRowBlock, tiles = int64_t(row_blocks) * kTilesN;
    cursor.take(to->parity_counter, kExchanges);
    cursor.take(to->row_group, kHasRowGroup ? FedBackOf<Program>::size * words : 0);
    cursor.take(to->column_group, int64_t(row_blocks) * kPitch * ExchangedColumnsOf<Program>::size);
    cursor.take(to->row_tail, kHasRowTail ? RowTailReductionsOf<Program>::size * words : 0);
    cursor.take(to->row_tail_counters, kHasRowTail ? int64_t(row_blocks) * kWarpsOfTile : 0);
    cursor.take(to->columns,
                tree.nodes() * int64_t(kPitch) * bytes_before<void>(CollectedColumnsOf<Program>{}));
    cursor.take(to->column_counters, kHasColumns ? int64_t(kTilesN) * tree.counters() : 0);
    cursor.take(to->full, full_stride(tiles) * bytes_before<void>(FullReductionsOf<Program>{}));
    cursor.take(to->full_counter, kHasFull);
    return cursor.bytes();
  }
  static int64_t bytes(int64_t row_blocks) {
    Workspace unused;
    return kIsEmpty ? 0 : place(&unused, nullptr, int(row_blocks));
  }

  // Column reduction E's States of one node.
  template <class E>
  CF_DEVICE static StateOf<E>* columns(Workspace const& workspace, ColumnTree const& tree, int node) {
    constexpr int kBefore = bytes_before<E>(CollectedColumnsOf<Program>{});
    auto* states =
        reinterpret_cast<StateOf<E>*>(workspace.columns + int64_t(tree.nodes()) * kPitch * kBefore);
    return states + int64_t(node) * kPitch;
  }
  // Full reduction E's States, by tile.
  template <class E>
  CF_DEVICE static StateOf<E>* full(Workspace const& workspace, int64_t tiles) {
    constexpr int kBefore = bytes_before<E>(FullReductionsOf<Program>{});
    return reinterpret_cast<StateOf<E>*>(workspace.full + full_stride(tiles) * kBefore);
  }

 private:
  // States of 8 bytes stay aligned behind those of 4.
  CF_HD static constexpr int64_t full_stride(int64_t tiles) { return (tiles + 1) / 2 * 2; }
};

}  // namespace comfuse::sm90
