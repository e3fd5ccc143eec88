// Walks a kernel's tiles as its CTAs do.
#include <vector>

#include "comfuse/sm90/scheduler.hpp"

using namespace comfuse;

// Counts how often each tile is computed, row block by row block.  Returns the number of items that are out
// of order, or that the CTAs of a cluster do not share as they should.
template <int TilesN, class ClusterShape, bool Waits>
int walk(int clusters, int row_blocks, int* computed) {
  using Scheduler =
      sm90::TileScheduler<Gemm<bf16, 128 * TilesN>, Pingpong<128, 128, 64>, ClusterShape, Waits>;
  constexpr int kM = ClusterShape::ClusterM, kN = ClusterShape::ClusterN;
  auto const blocks_of_batch = sm90::Divisor::of(uint32_t(row_blocks));
  int wrong = 0, items = 0;
  gridDim.x = clusters * ClusterShape::kSize;
  for (int cluster = 0; cluster < clusters; ++cluster) {
    std::vector<Scheduler> ctas;
    for (int rank = 0; rank < ClusterShape::kSize; ++rank) {
      blockIdx.x = cluster * ClusterShape::kSize + rank;
      ctas.emplace_back(row_blocks, blocks_of_batch);
    }
    for (; !ctas[0].done(); ++items) {
      auto const first = ctas[0].item();
      wrong += first.row_block % kM != 0 || first.tile_n % kN != 0 || first.phantom();
      // Those that wait for each other have numbers of their own, in the order of the row blocks.
      wrong += Waits && ctas[0].next / Scheduler::kClustersN != first.row_block / kM;
      for (int rank = 0; rank < ClusterShape::kSize; ++rank) {
        Scheduler& tiles = ctas[rank];
        auto const item = tiles.item();
        wrong += tiles.done() || tiles.rank != rank;
        wrong += item.row_block != first.row_block + rank % kM || item.tile_n != first.tile_n + rank % kN;
        wrong += item.row() != item.row_block * 128 || item.column() != item.tile_n * 128 || item.batch != 0;
        bool const inside = item.row_block < row_blocks && item.tile_n < TilesN;
        wrong += item.phantom() == inside;
        if (inside) ++computed[item.row_block * TilesN + item.tile_n];
        tiles.advance();
      }
    }
    for (Scheduler const& tiles : ctas) wrong += !tiles.done();
  }
  return wrong + (items != Scheduler::items_of(row_blocks));
}

#define WALK(TILES, M, N)                                                                   \
  extern "C" int any_##TILES##_##M##x##N(int clusters, int row_blocks, int* computed) {     \
    return walk<TILES, Cluster<M, N>, false>(clusters, row_blocks, computed);               \
  }                                                                                         \
  extern "C" int waiting_##TILES##_##M##x##N(int clusters, int row_blocks, int* computed) { \
    return walk<TILES, Cluster<M, N>, true>(clusters, row_blocks, computed);                \
  }
#define WALK_ALL(TILES) WALK(TILES, 1, 1) WALK(TILES, 1, 2) WALK(TILES, 2, 1)
WALK_ALL(1)
WALK_ALL(2)
WALK_ALL(3)
WALK_ALL(7)
