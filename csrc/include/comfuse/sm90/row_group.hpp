// Row reductions across the tiles of a row block: the CTAs that hold them exchange one 64-bit word a
// row and tile (exchange.hpp).  Every tile publishes all its rows, those beyond M too.
//
// Nothing can deadlock if all CTAs are resident at once (the launch is cooperative) and a row block's
// tiles lie in at most as many clusters as run: a tile waits for tiles of its own row block only, and
// whatever the CTAs of a cluster have to finish before they reach one of those lies in earlier row blocks.
#pragma once

#include "comfuse/sm90/exchange.hpp"
#include "comfuse/sm90/monoids.hpp"

namespace comfuse::sm90 {

// The words of one reduction and one row block: TilesN groups of TileM words.
template <int N, int TileM, int TileN, int TilesN>
struct RowGroup {
  CF_DEVICE static void publish(uint64_t* words, int tile_n, int row, uint64_t word, uint32_t tag) {
    Exchange::publish(words + tile_n * TileM + row, word, tag);
  }

  // Waits for the row's words of all tiles and merges them in index order.
  template <class Monoid>
  CF_DEVICE static typename Monoid::State gather(uint64_t const* words, int row, uint32_t tag) {
    typename Monoid::Merger merger;
#pragma unroll
    for (int base = 0; base < TilesN; base += kInFlight) {
      uint64_t word[kInFlight];
      Exchange::await(word, words + base * TileM + row, TileM, TilesN - base, tag);
#pragma unroll
      for (int t = 0; t < kInFlight; ++t) {
        if (base + t >= TilesN) continue;
        constexpr int kLast = N - (TilesN - 1) * TileN;
        float count = base + t == TilesN - 1 ? kLast : TileN;
        merger.add(Monoid::State::unpack(Exchange::untagged(word[t])), count, base + t == 0);
      }
    }
    return merger.finish(1.f / N);
  }

 private:
  static constexpr int kInFlight = 8;
};

}  // namespace comfuse::sm90
