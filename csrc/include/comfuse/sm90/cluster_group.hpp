// Row reductions across the tiles of a row block, where these are the CTAs of one cluster: they write one
// word of 64 bits a row and tile into each other's shared memory, where a barrier of the warp counts the
// bytes.  Nothing passes through L2, which polls would slow down for everybody, and the launch need not be
// cooperative.
//
// A warp has two buffers and takes them in turn.  Its peers write to one again when they have all words of
// the exchange between, this warp's among them, and it publishes those when it has read the first.
#pragma once

#include "comfuse/sm90/reductions.hpp"

namespace comfuse::sm90 {

// The same place in the shared memory of another CTA of the cluster, or of this one.
CF_DEVICE uint32_t address_of_peer(uint64_t const* own, uint32_t rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(own)), "r"(rank));
  return address;
}
// Arrives later, and is counted at the barrier, which lies in the same CTA.
CF_DEVICE void store_to_peer(uint32_t address, uint64_t word, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u64 [%0], %1, [%2];" ::"r"(address),
               "l"(word), "r"(barrier)
               : "memory");
}

template <class Kernel>
struct ClusterGroup {
  using FedBack = FedBackOf<typename Kernel::Program>;
  static constexpr int kTilesN = Kernel::Scheduler::kTilesN, TileM = Kernel::TileM;
  static constexpr bool kIsUsed =
      FedBack::size > 0 && kTilesN > 1 && kTilesN == Kernel::ClusterShape::ClusterN;

  // ---- layout: words by team, parity of its items, reduction, tile and row; barriers by team, warp and
  // parity of the warp's exchanges
  static constexpr int kWarps = 4 * Kernel::kTeamSize, kRowsOfWarp = 16 * Kernel::kFragments;
  static constexpr int kWordsOfItem = FedBack::size * kTilesN * TileM;
  static constexpr int kBytes = kIsUsed ? Kernel::kTeams * 2 * kWordsOfItem * 8 : 0;
  static constexpr int kBarriers = kIsUsed ? Kernel::kTeams * kWarps * 2 : 0;

  uint64_t *words, *barriers;  // the team's

  CF_DEVICE static ClusterGroup of_team(uint8_t* memory, uint64_t* barriers, int team) {
    return {reinterpret_cast<uint64_t*>(memory) + team * 2 * kWordsOfItem, barriers + team * kWarps * 2};
  }
  CF_DEVICE void init() const {
    for (int i = 0; i < (kIsUsed ? kWarps * 2 : 0); ++i) Barrier::init(barriers + i, 1);
  }

  // Where a warp stands: its exchanges so far, and the items whose last one is over.
  struct Position {
    uint32_t exchange = 0, item = 0;
  };

  // To all tiles, this one too.
  template <class E>
  CF_DEVICE void publish(Position const& position, int warp, int tile_n, int row, uint64_t word) const {
    uint64_t* const to = words_of<E>(position) + tile_n * TileM + row;
#pragma unroll
    for (int rank = 0; rank < kTilesN; ++rank)
      store_to_peer(address_of_peer(to, rank), word, address_of_peer(barrier(position, warp), rank));
  }

  // All lanes, behind the warp's words of so many reductions: waits for those of its rows.
  CF_DEVICE void await(Position& position, int warp, int reductions) const {
    uint64_t* const b = barrier(position, warp);
    __syncwarp();
    if (lane_id() == 0) Barrier::arrive_and_expect_tx(b, reductions * kTilesN * kRowsOfWarp * 8);
    wait(*b, position.exchange >> 1 & 1);
    ++position.exchange;
  }

  // Then: one row's, merged in the order of the tiles.
  template <class E>
  CF_DEVICE StateOf<E> gather(Position const& position, int row) const {
    constexpr int kColumnsOfLast = Kernel::N - (kTilesN - 1) * Kernel::TileN;
    typename ReductionOf<E>::Monoid::Merger merger;
#pragma unroll
    for (int t = 0; t < kTilesN; ++t) {
      float const count = t == kTilesN - 1 ? kColumnsOfLast : Kernel::TileN;
      merger.add(StateOf<E>::unpack(words_of<E>(position)[t * TileM + row]), count, t == 0);
    }
    return merger.finish(1.f / Kernel::N);
  }

 private:
  CF_DEVICE uint64_t* barrier(Position const& position, int warp) const {
    return barriers + warp * 2 + (position.exchange & 1);
  }
  template <class E>
  CF_DEVICE uint64_t* words_of(Position const& position) const {
    return words + (position.item & 1) * kWordsOfItem + position_in<E, FedBack> * kTilesN * TileM;
  }
};

}  // namespace comfuse::sm90
