// Which tiles a CTA computes, and in which order.
//
// Work is numbered in bands of row blocks (of all batches), row blocks fastest within a band, in units of one
// cluster's tiles; cluster c of G takes items c, c + G, ...  What runs at once is then about as high as it
// is wide, and reads the least of A and B: one row block of N = 32000 would pass all of B through L2.
//
// Where tiles wait for their row block, a band is one row block: that makes the row-group exchange free of
// deadlock, since the tiles that a tile waits for have neighbouring numbers (see row_group.hpp).
#pragma once

#include "comfuse/program_parts.hpp"
#include "comfuse/sm90/divisor.hpp"
#include "comfuse/sm90/instructions.hpp"

namespace comfuse::sm90 {

template <class GemmT, class Schedule, class ClusterShape, bool Waits>
struct TileScheduler {
  static constexpr int TileM = Schedule::TileM, TileN = Schedule::TileN, ClusterN = ClusterShape::ClusterN;
  static constexpr int kTilesN = (GemmT::N + TileN - 1) / TileN;  // tiles of a row block that hold columns
  // Clusters of a row block.  Where ClusterN does not divide kTilesN the last one has a phantom
  // tile, outside the matrix: loads give zeros, nothing is stored, published or awaited.
  static constexpr int kClustersN = (kTilesN + ClusterN - 1) / ClusterN;

  static constexpr int kBand = Waits ? 1 : 16;  // row blocks

  struct Item {
    int row_block;  // counted over all batches
    int tile_n, batch, block_of_batch;
    CF_DEVICE int row() const { return block_of_batch * TileM; }  // within the batch
    CF_DEVICE int column() const { return tile_n * TileN; }
    CF_DEVICE bool phantom() const { return kTilesN % ClusterN != 0 && tile_n >= kTilesN; }
  };

  int rank, clusters, items, next, row_blocks;
  Divisor blocks_of_batch;

  CF_DEVICE TileScheduler(int row_blocks, Divisor const& blocks_of_batch)
      : rank(blockIdx.x % ClusterN),
        clusters(gridDim.x / ClusterN),
        items(row_blocks * kClustersN),
        next(blockIdx.x / ClusterN),
        row_blocks(row_blocks),
        blocks_of_batch(blocks_of_batch) {}

  CF_DEVICE bool done() const { return next >= items; }
  CF_DEVICE Item item() const {
    constexpr int kItems = kBand * kClustersN;  // of a band
    int const first = next / kItems * kBand, within = next % kItems;
    int const height = kBand == 1 ? 1 : min(kBand, row_blocks - first);
    int const cluster_n = within / height, block = first + within - cluster_n * height;
    int const batch = GemmT::kBatched ? blocks_of_batch.divide(block) : 0;
    return {block, cluster_n * ClusterN + rank, batch, block - batch * int(blocks_of_batch.value)};
  }
  CF_DEVICE void advance(int count = 1) { next += count * clusters; }
};

}  // namespace comfuse::sm90
