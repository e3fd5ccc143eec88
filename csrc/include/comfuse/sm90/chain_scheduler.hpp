// Which tiles of 64 rows a warpgroup of a chain's kernel computes.  The weights' producer loads them for all
// warpgroups of a CTA, round by round.
#pragma once

#include "comfuse/sm90/divisor.hpp"
#include "comfuse/sm90/instructions.hpp"

namespace comfuse::sm90 {

// Warpgroup w of CTA b takes the tiles b, b + G, ... of G CTAs, whose number modulo the warpgroups is w.
template <int Warpgroups, bool Batched>
struct ChainScheduler {
  static constexpr int kTilesN = 1, kClustersN = 1;
  CF_HD static constexpr int items_of(int row_blocks) { return row_blocks; }

  struct Item {
    static constexpr int tile_n = 0, batch = 0;
    int row_block;
    CF_DEVICE int row() const { return row_block * 64; }
    CF_DEVICE static constexpr int column() { return 0; }
    CF_DEVICE static constexpr bool phantom() { return false; }
  };

  int next, row_blocks;

  CF_DEVICE ChainScheduler(int row_blocks, Divisor const&, int warpgroup)
      : next(warpgroup * grid_size() + blockIdx.x), row_blocks(row_blocks) {}
  CF_DEVICE bool done() const { return next >= row_blocks; }
  CF_DEVICE static constexpr bool idle() { return false; }
  CF_DEVICE Item item() const { return {next}; }
  CF_DEVICE void advance() { next += Warpgroups * grid_size(); }
  // How many tiles a warpgroup has: the first one as many as any.
  CF_DEVICE static int rounds(int row_blocks, Divisor const&, int warpgroup) {
    int const size = grid_size(), lap = Warpgroups * size, first = warpgroup * size + blockIdx.x;
    return (row_blocks - first + lap - 1) / lap;
  }
  CF_DEVICE static constexpr int batch_of(Divisor const&, int /*round*/) { return 0; }
};

// A round is `Warpgroups` neighbouring tiles of one batch, whose weights they share; behind the batch's last
// row some warpgroups are idle.
template <int Warpgroups>
struct ChainScheduler<Warpgroups, true> {
  static constexpr int kTilesN = 1, kClustersN = 1;
  CF_HD static constexpr int items_of(int row_blocks) { return row_blocks; }

  struct Item {
    static constexpr int tile_n = 0;
    int row_block;  // counted over all batches
    int batch, block_of_batch;
    CF_DEVICE int row() const { return block_of_batch * 64; }  // within the batch
    CF_DEVICE static constexpr int column() { return 0; }
    CF_DEVICE static constexpr bool phantom() { return false; }
  };

  int next, row_blocks, blocks_of_batch, warpgroup;

  CF_DEVICE ChainScheduler(int row_blocks, Divisor const& blocks_of_batch, int warpgroup)
      : next(blockIdx.x),
        row_blocks(row_blocks),
        blocks_of_batch(int(blocks_of_batch.value)),
        warpgroup(warpgroup) {}
  CF_DEVICE bool done() const { return next >= all_rounds(); }
  CF_DEVICE bool idle() const { return !done() && item().block_of_batch >= blocks_of_batch; }
  CF_DEVICE Item item() const {
    int const batch = next / rounds_of_batch();
    int const block = (next - batch * rounds_of_batch()) * Warpgroups + warpgroup;
    return {batch * blocks_of_batch + block, batch, block};
  }
  CF_DEVICE void advance() { next += grid_size(); }
  CF_DEVICE static int rounds(int row_blocks, Divisor const& blocks_of_batch, int warpgroup) {
    ChainScheduler const tiles(row_blocks, blocks_of_batch, warpgroup);
    return (tiles.all_rounds() - tiles.next + grid_size() - 1) / grid_size();
  }
  CF_DEVICE static int batch_of(Divisor const& blocks_of_batch, int round) {
    int const next = blockIdx.x + round * grid_size();
    return next / rounds_of(int(blocks_of_batch.value));
  }

 private:
  CF_DEVICE static int rounds_of(int blocks) { return (blocks + Warpgroups - 1) / Warpgroups; }
  CF_DEVICE int rounds_of_batch() const { return rounds_of(blocks_of_batch); }
  CF_DEVICE int all_rounds() const { return row_blocks / blocks_of_batch * rounds_of_batch(); }
};

}  // namespace comfuse::sm90
