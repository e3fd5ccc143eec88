// Which tiles a CTA computes, and in which order.
//
// Work is numbered batch by batch, row block by row block, n fastest, in units of one cluster's tiles;
// cluster c of G takes items c, c + G, ...  The order is what makes the row-group exchange free of deadlock:
// the tiles that a tile waits for have neighbouring numbers (see row_group.hpp).
#pragma once

#include "comfuse/program.hpp"
#include "comfuse/sm90/instructions.hpp"

namespace comfuse::sm90 {

template <class GemmT, class Schedule, class ClusterShape>
struct TileScheduler {
  static constexpr int TileM = Schedule::TileM, TileN = Schedule::TileN, ClusterN = ClusterShape::ClusterN;
  static constexpr int kTilesN = (GemmT::N + TileN - 1) / TileN;  // tiles of a row block that hold columns
  // Clusters of a row block.  Where ClusterN does not divide kTilesN the last one has a phantom
  // tile, outside the matrix: loads give zeros, nothing is stored, published or awaited.
  static constexpr int kClustersN = (kTilesN + ClusterN - 1) / ClusterN;

  struct Item {
    int row_block;  // counted over all batches
    int tile_n, batch, block_of_batch;
    CF_DEVICE int row() const { return block_of_batch * TileM; }  // within the batch
    CF_DEVICE int column() const { return tile_n * TileN; }
    CF_DEVICE bool phantom() const { return kTilesN % ClusterN != 0 && tile_n >= kTilesN; }
  };

  int rank, clusters, items, next, blocks_of_batch;

  CF_DEVICE TileScheduler(int row_blocks, int blocks_of_batch)
      : rank(blockIdx.x % ClusterN),
        clusters(gridDim.x / ClusterN),
        items(row_blocks * kClustersN),
        next(blockIdx.x / ClusterN),
        blocks_of_batch(blocks_of_batch) {}

  CF_DEVICE bool done() const { return next >= items; }
  CF_DEVICE Item item() const {
    int const block = next / kClustersN;
    int const batch = GemmT::kBatched ? block / blocks_of_batch : 0;
    return {block, (next - block * kClustersN) * ClusterN + rank, batch, block - batch * blocks_of_batch};
  }
  CF_DEVICE void advance(int count = 1) { next += count * clusters; }
};

}  // namespace comfuse::sm90
