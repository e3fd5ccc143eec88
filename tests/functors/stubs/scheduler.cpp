// Walks a chain's tiles as the agents of its CTAs do.
#include "comfuse/sm90/chain_scheduler.hpp"

using namespace comfuse::sm90;

// Counts how often each tile is computed.  Returns the number of rounds in which a warpgroup has a tile of
// another batch than the one whose weights are there, or that it misses.
template <int Warpgroups, bool Batched>
int walk(int ctas, int batches, int blocks, int* computed) {
  auto const blocks_of_batch = Divisor::of(uint32_t(blocks));
  int wrong = 0;
  grid = ctas;
  for (blockIdx.x = 0; blockIdx.x < ctas; ++blockIdx.x) {
    using Scheduler = ChainScheduler<Warpgroups, Batched>;
    int const rounds = Scheduler::rounds(batches * blocks, blocks_of_batch, 0);
    for (int warpgroup = 0; warpgroup < Warpgroups; ++warpgroup) {
      int round = 0;
      for (Scheduler tiles(batches * blocks, blocks_of_batch, warpgroup); !tiles.done(); tiles.advance()) {
        auto const item = tiles.item();
        bool const same = item.batch == Scheduler::batch_of(blocks_of_batch, round) && round < rounds;
        ++round;
        if (tiles.idle()) continue;
        wrong += !same || item.row() != (Batched ? item.row_block % blocks : item.row_block) * 64;
        ++computed[item.row_block];
      }
      wrong += Batched && round != rounds;
    }
  }
  return wrong;
}

#define WALK(W)                                                                  \
  extern "C" int one_##W(int ctas, int batches, int blocks, int* computed) {     \
    return walk<W, false>(ctas, batches, blocks, computed);                      \
  }                                                                              \
  extern "C" int batched_##W(int ctas, int batches, int blocks, int* computed) { \
    return walk<W, true>(ctas, batches, blocks, computed);                       \
  }
WALK(2)
WALK(3)
