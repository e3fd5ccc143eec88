// Which tiles a CTA computes, and in which order.
//
// Work is numbered in bands of row blocks (of all batches), row blocks fastest within a band, in units of one
// cluster's tiles; cluster c of G takes items c, c + G, ...  What runs at once is then about as high as it
// is wide, and reads the least of A and B: one row block of N = 32000 would pass all of B through L2.
//
// Where tiles wait for their row block, a band is one row block, or those that a cluster has at once: that
// makes the row-group exchange free of deadlock, since the tiles that a tile waits for have neighbouring
// numbers (see row_group.hpp).
#pragma once

#include "comfuse/program_parts.hpp"
#include "comfuse/sm90/divisor.hpp"
#include "comfuse/sm90/instructions.hpp"

namespace comfuse::sm90 {

template <class GemmT, class Schedule, class ClusterShape, bool Waits>
struct TileScheduler {
  static constexpr int TileM = Schedule::TileM, TileN = Schedule::TileN;
  static constexpr int ClusterM = ClusterShape::ClusterM, ClusterN = ClusterShape::ClusterN;
  static constexpr int kTilesN = (GemmT::N + TileN - 1) / TileN;  // tiles of a row block that hold columns
  // Clusters of a row block, and of a column of tiles.  Where the cluster does not divide the tiles the last
  // one has a phantom tile, outside the matrix: loads give zeros, nothing is stored, published or awaited.
  static constexpr int kClustersN = (kTilesN + ClusterN - 1) / ClusterN;
  CF_HD static constexpr int clusters_m(int row_blocks) { return (row_blocks + ClusterM - 1) / ClusterM; }
  CF_HD static constexpr int items_of(int row_blocks) { return clusters_m(row_blocks) * kClustersN; }
  static_assert(ClusterM == 1 || !GemmT::kBatched, "the row blocks of a cluster lie in one batch");

  static constexpr int kBand = Waits ? 1 : 16 / ClusterM;  // clusters

  struct Item {
    int row_block;  // counted over all batches
    int tile_n, batch, block_of_batch;
    bool below;  // the last row block
    CF_DEVICE int row() const { return block_of_batch * TileM; }  // within the batch
    CF_DEVICE int column() const { return tile_n * TileN; }
    CF_DEVICE bool phantom() const { return below || (kTilesN % ClusterN != 0 && tile_n >= kTilesN); }
  };

  int rank, clusters, items, next, row_blocks;  // `rank` of the CTA in its cluster
  Divisor blocks_of_batch;

  CF_DEVICE TileScheduler(int row_blocks, Divisor const& blocks_of_batch)
      : rank(blockIdx.x % ClusterShape::kSize),
        clusters(gridDim.x / ClusterShape::kSize),
        items(items_of(row_blocks)),
        next(blockIdx.x / ClusterShape::kSize),
        row_blocks(row_blocks),
        blocks_of_batch(blocks_of_batch) {}

  CF_DEVICE bool done() const { return next >= items; }
  CF_DEVICE Item item() const {
    constexpr int kItems = kBand * kClustersN;  // of a band
    int const first = next / kItems * kBand, within = next % kItems;
    int const height = kBand == 1 ? 1 : min(kBand, clusters_m(row_blocks) - first);
    int const cluster_n = within / height, cluster_m = first + within - cluster_n * height;
    int const block = cluster_m * ClusterM + rank % ClusterM, tile_n = cluster_n * ClusterN + rank % ClusterN;
    int const batch = GemmT::kBatched ? blocks_of_batch.divide(block) : 0;
    return {block, tile_n, batch, block - batch * int(blocks_of_batch.value),
            ClusterM > 1 && block >= row_blocks};
  }
  CF_DEVICE void advance(int count = 1) { next += count * clusters; }
};

}  // namespace comfuse::sm90
