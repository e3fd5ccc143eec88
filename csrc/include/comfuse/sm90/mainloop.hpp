// The GEMM of one tile: TMA fills a ring of K blocks, one or two warpgroups feed them to wgmma.
//
// The CTAs of a cluster share a row block: each loads its part of A's tile and multicasts it to all.
//
// B's rows, which are the output's columns, are permuted on their way to shared memory, so that wgmma
// deals each thread runs of eight neighbouring columns: row 8 j + 2 q + e of each 32 holds column
// 8 q + 2 j + e.  TMA does it for nothing, through a tensor map of five dimensions, (k, e, q, j, 32s).
#pragma once

#include <cuda.h>

#include "comfuse/sm90/instructions.hpp"

namespace comfuse::sm90 {

template <class T, int N, class Schedule, class ClusterShape, class StagesT>
struct Mainloop {
  static constexpr int TileM = Schedule::TileM, TileN = Schedule::TileN, TileK = Schedule::TileK;
  static constexpr int ClusterN = ClusterShape::ClusterN, kStages = StagesT::value;
  static constexpr int kBytesA = TileM * TileK * int(sizeof(T)), kBytesB = TileN * TileK * int(sizeof(T));
  static constexpr int kStageBytes = kBytesA + kBytesB;
  // The last 32 columns may be 8, 16 or 24: q then ends early, and a tensor map of their own says so.
  static constexpr int kPartialColumns = N % 32;
  static constexpr int kGroupsOfBox = kPartialColumns == 0 ? TileN / 32 : 1;  // of 32 columns
  static constexpr int kRowsA = TileM / ClusterN;  // rows of A that one CTA loads
  static constexpr int kFragments = TileM / 64 / Schedule::kTeamSize;  // wgmmas of 64 rows a warpgroup
  static constexpr int kReleases = Schedule::kTeamSize * ClusterN;     // arrivals that free a stage
  static_assert(TileK * sizeof(T) == 128, "a K block is one 128-byte swizzle row");
  static_assert(ClusterShape::ClusterM == 1, "clusters extend along N");

  using Position = RingPosition<kStages>;
  using Accumulator = float[kFragments][TileN / 2];

  struct Shared {  // in shared memory
    uint8_t* stages;
    uint64_t *full, *empty;
    CF_DEVICE uint8_t* a(uint32_t slot) const { return stages + slot * kStageBytes; }
    CF_DEVICE uint8_t* b(uint32_t slot) const { return a(slot) + kBytesA; }
  };

  struct Maps {  // tensor maps
    CUtensorMap a, b, b_partial;
  };

  CF_DEVICE static void init(Shared const& shared) {
    for (int i = 0; i < kStages; ++i) {
      Barrier::init(shared.full + i, 1);
      Barrier::init(shared.empty + i, kReleases);
    }
  }

  // One thread loads the K blocks of the tile at (row, column).
  CF_DEVICE static void load(Shared const& shared, Position& position, Maps const& maps, int row, int column,
                             int rank, int k_blocks) {
    for (int k = 0; k < k_blocks; ++k, position.advance()) {
      wait(shared.empty[position.slot], position.phase ^ 1);
      uint64_t* full = shared.full + position.slot;
      Barrier::arrive_and_expect_tx(full, kStageBytes);
      uint8_t* a = shared.a(position.slot) + rank * (kBytesA / ClusterN);
      if constexpr (ClusterN == 1)
        cute::SM90_TMA_LOAD_2D::copy(&maps.a, full, kHint, a, k * TileK, row);
      else
        cute::SM90_TMA_LOAD_MULTICAST_2D::copy(&maps.a, full, (1 << ClusterN) - 1, kHint, a, k * TileK,
                                               row + rank * kRowsA);
#pragma unroll
      for (int group = 0; group < TileN / 32; group += kGroupsOfBox) {
        bool const partial = kPartialColumns != 0 && column / 32 + group == N / 32;
        cute::SM90_TMA_LOAD_5D::copy(partial ? &maps.b_partial : &maps.b, full, kHint,
                                     shared.b(position.slot) + group * 32 * 128, k * TileK, 0, 0, 0,
                                     partial ? 0 : column / 32 + group);
      }
    }
  }

  // Peers' consumers may still arrive at this CTA's barriers: wait until every stage is free.
  CF_DEVICE static void drain(Shared const& shared, Position& position) {
    for (int i = 0; i < kStages; ++i, position.advance())
      wait(shared.empty[position.slot], position.phase ^ 1);
  }

  // The share of the tile of one of the team's warpgroups; returns with the last K block's products still in
  // flight.
  CF_DEVICE static void multiply(Shared const& shared, Position& position, Accumulator& accumulator,
                                 int member, int k_blocks) {
    uint32_t const first_row = member * (kFragments * 64) * 128;
#pragma unroll 1
    for (int k = 0; k < k_blocks; ++k) {
      wait(shared.full[position.slot], position.phase);
      uint32_t a = uniform(cute::cast_smem_ptr_to_uint(shared.a(position.slot)) + first_row);
      uint32_t b = uniform(cute::cast_smem_ptr_to_uint(shared.b(position.slot)));
      cute::warpgroup_arrive();
#pragma unroll
      for (int step = 0; step < TileK / 16; ++step) {
#pragma unroll
        for (int i = 0; i < kFragments; ++i)
          wgmma<T, TileN>(wgmma_descriptor(a + i * 64 * 128 + step * 32), wgmma_descriptor(b + step * 32),
                          accumulator[i], k > 0 || step > 0);
      }
      cute::warpgroup_commit_batch();
      if (k > 0) {
        cute::warpgroup_wait<1>();
        release(shared, previous(position));
      }
      position.advance();
    }
  }

  // Waits for the products and frees the last stage.
  CF_DEVICE static void finish(Shared const& shared, Position const& position, Accumulator& accumulator) {
    cute::warpgroup_wait<0>();
    release(shared, previous(position));
#pragma unroll
    for (int i = 0; i < kFragments; ++i) fence_accumulators(accumulator[i]);
  }

 private:
  static constexpr uint64_t kHint = uint64_t(cute::TMA::CacheHintSm90::EVICT_NORMAL);
  CF_DEVICE static uint32_t previous(Position const& position) {
    return position.slot == 0 ? kStages - 1 : position.slot - 1;
  }
  CF_DEVICE static void release(Shared const& shared, uint32_t slot) {
    uint32_t thread = threadIdx.x % kWarpgroup;
    if constexpr (ClusterN == 1) {
      if (thread == 0) arrive(shared.empty[slot]);
    } else {
      if (thread < ClusterN) arrive_at(shared.empty[slot], thread);
    }
  }
};

}  // namespace comfuse::sm90
