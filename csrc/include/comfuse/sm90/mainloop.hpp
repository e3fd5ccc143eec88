// The GEMMs of one tile: TMA fills a ring of K blocks, one or two warpgroups feed them to wgmma.
//
// Two products share A: their Bs lie one after the other in shared memory, as those of one that is twice as
// wide.  Or each has an A and a K of its own: then the K blocks of the second pass through the ring behind
// those of the first, in a pass of their own.
// The CTAs of a cluster share a row block, or the columns of their tiles: each loads its part of A's tile, or
// of every B's, and multicasts it to all.
//
// B's rows, which are the output's columns, are permuted on their way to shared memory, so that wgmma
// deals each thread runs of eight neighbouring columns: row 8 j + 2 q + e of each 32 holds column
// 8 q + 2 j + e.  TMA does it for nothing, through a tensor map of five dimensions, (k, e, q, j, 32s).
// It cannot where a B is MN-major or batched or its rows come in no whole runs of eight: there B is loaded as
// it is, and the threads work on pairs of columns (fragment_layout.hpp) or, where the program cannot, trade
// accumulators when the products are finished (transpose.hpp).
#pragma once

#include <cuda.h>

#include "comfuse/sm90/batches.hpp"
#include "comfuse/sm90/instructions.hpp"
#include "comfuse/sm90/shared_layout.hpp"
#include "comfuse/sm90/transpose.hpp"

namespace comfuse::sm90 {

// Of a factor's `Rows` rows of a tile, those that one CTA loads where `Sharers` have the same ones.
template <int Rows, int Sharers>
struct PartOfTile {
  static constexpr bool kIsShared = Sharers > 1;
  static constexpr int kRows = Rows / Sharers;
  static_assert(Rows % Sharers == 0);
  CF_DEVICE static int first(int rank) { return kIsShared ? rank * kRows : 0; }
};

template <class GemmT, class Schedule, class ClusterShape, class StagesT>
struct Mainloop {
  using T = typename GemmT::Element;
  static constexpr int N = GemmT::N, kProducts = GemmT::kProducts;
  static constexpr int kPasses = GemmT::kOwnA ? kProducts : 1, kProductsOfPass = kProducts / kPasses;
  static constexpr bool kBatched = GemmT::kBatched;
  template <int Pass>
  using MajorA = typename GemmT::template MajorsOf<Pass>::MajorA;
  template <int Pass>
  using MajorB = typename GemmT::template MajorsOf<Pass>::MajorB;
  template <int Pass>
  static constexpr bool kMNMajorA = std::is_same<MajorA<Pass>, MNMajor>::value;
  template <int Pass>
  static constexpr bool kMNMajorB = std::is_same<MajorB<Pass>, MNMajor>::value;
  // All of them or none: a thread holds the same columns of every product.
  static constexpr bool kPermutedB = !kMNMajorB<0> && !kMNMajorB<kPasses - 1> && !kBatched && N % 8 == 0;

  static constexpr int TileM = Schedule::TileM, TileN = Schedule::TileN, TileK = Schedule::TileK;
  static constexpr int kClusterSize = ClusterShape::kSize, kStages = StagesT::value;
  using PartA = PartOfTile<TileM, ClusterShape::ClusterN>;
  using PartB = PartOfTile<TileN, ClusterShape::ClusterM>;
  static constexpr int kBytesA = TileM * kLineBytes, kBytesOfProduct = TileN * kLineBytes;
  static constexpr int kStageBytes = kBytesA + kProductsOfPass * kBytesOfProduct;
  // Where B is permuted.  The last 32 columns may be 8, 16 or 24: q then ends early, and a tensor map of
  // their own says so.
  static constexpr int kPartialColumns = kPermutedB ? N % 32 : 0;
  static constexpr int kGroupsOfBox = kPartialColumns == 0 ? PartB::kRows / 32 : 1;  // of 32 columns
  static constexpr int kFragments = TileM / 64 / Schedule::kTeamSize;  // wgmmas of 64 rows a warpgroup
  static constexpr int kReleases = Schedule::kTeamSize * kClusterSize;  // arrivals that free a stage
  static_assert(TileK * sizeof(T) == kLineBytes, "a K block is one 128-byte swizzle row");
  static constexpr int kColumns = kProducts * TileN, kColumnsOfPass = kProductsOfPass * TileN,
                       kFirstColumns = columns_of_first_wgmma(kColumnsOfPass);
  static_assert(kProducts <= 2 && (kPermutedB || TileN <= 256), "a box of TMA has at most 256 rows");
  static constexpr bool kSomeMNMajorA = kMNMajorA<0> || kMNMajorA<kPasses - 1>,
                        kSomeMNMajorB = kMNMajorB<0> || kMNMajorB<kPasses - 1>;
  static_assert((!kSomeMNMajorA || PartA::kRows % kRowsOfBlock == 0) &&
                    (!kSomeMNMajorB || PartB::kRows % kRowsOfBlock == 0),
                "MN-major factors come in boxes of 64 rows");
  static_assert(!kPermutedB || PartB::kRows % 32 == 0, "permuted Bs come in groups of 32 columns");

  using Position = RingPosition<kStages>;
  using Accumulator = float[kFragments][kColumns / 2];  // product by product
  using Blocks = int[kPasses];  // along K

  struct Shared {  // in shared memory
    uint8_t* stages;
    uint64_t *full, *empty;
    CF_DEVICE uint8_t* a(uint32_t slot) const { return stages + slot * kStageBytes; }
    CF_DEVICE uint8_t* b(uint32_t slot) const { return a(slot) + kBytesA; }
  };

  // Tensor maps, and which matrix of each is a batch's.
  struct Maps {
    CUtensorMap a[kPasses], b[kProducts], b_partial[kPartialColumns > 0 ? kProducts : 1];
    BatchSteps<int> a_batches[kPasses], b_batches[kProducts];
  };

  CF_DEVICE static void init(Shared const& shared) {
    for (int i = 0; i < kStages; ++i) {
      Barrier::init(shared.full + i, 1);
      Barrier::init(shared.empty + i, kReleases);
    }
  }

  // Of a tile, over all products.
  CF_DEVICE static int count(Blocks const& k_blocks) {
    if constexpr (kPasses == 1)
      return k_blocks[0];
    else
      return k_blocks[0] + k_blocks[1];
  }

  // One thread loads the K blocks of the tile at (row, column) of a batch.
  CF_DEVICE static void load(Shared const& shared, Position& position, Maps const& maps, int batch, int row,
                             int column, int rank, Blocks const& k_blocks) {
    load_pass<0>(shared, position, maps, batch, row, column, rank, k_blocks[0]);
    if constexpr (kPasses > 1) load_pass<1>(shared, position, maps, batch, row, column, rank, k_blocks[1]);
  }

  // Peers' consumers may still arrive at this CTA's barriers: wait until every stage is free.
  CF_DEVICE static void drain(Shared const& shared, Position& position) {
    for (int i = 0; i < kStages; ++i, position.advance())
      wait(shared.empty[position.slot], position.phase ^ 1);
  }

  // The share of the tile of one of the team's warpgroups; returns with the last K block's products still in
  // flight.
  CF_DEVICE static void multiply(Shared const& shared, Position& position, Accumulator& accumulator,
                                 int member, Blocks const& k_blocks) {
    multiply_pass<0>(shared, position, accumulator, member, k_blocks[0]);
    if constexpr (kPasses > 1) multiply_pass<1>(shared, position, accumulator, member, k_blocks[1]);
  }

  // Waits for the products, frees the last stage, and trades for runs of eight columns if told so.
  template <bool kTraded>
  CF_DEVICE static void finish(Shared const& shared, Position const& position, Accumulator& accumulator) {
    cute::warpgroup_wait<0>();
    release(shared, previous(position));
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      fence_accumulators(accumulator[i]);
      if constexpr (kTraded) transpose(accumulator[i]);
    }
  }

 private:
  template <int Pass>
  CF_DEVICE static void load_pass(Shared const& shared, Position& position, Maps const& maps, int batch,
                                  int row, int column, int rank, int k_blocks) {
    int matrix_a = 0, matrices_b[kProductsOfPass] = {};
    if constexpr (kBatched) {
      matrix_a = maps.a_batches[Pass].of(batch);
#pragma unroll
      for (int p = 0; p < kProductsOfPass; ++p) matrices_b[p] = maps.b_batches[Pass + p].of(batch);
    }
    for (int k = 0; k < k_blocks; ++k, position.advance()) {
      wait(shared.empty[position.slot], position.phase ^ 1);
      uint64_t* full = shared.full + position.slot;
      Barrier::arrive_and_expect_tx(full, kStageBytes);
      int const first_a = PartA::first(rank), first_b = PartB::first(rank);
      load_a<Pass>(maps, full, shared.a(position.slot) + first_a * kLineBytes, k * TileK, row + first_a,
                   matrix_a);
#pragma unroll
      for (int p = 0; p < kProductsOfPass; ++p)
        load_b<Pass>(maps, Pass + p, full,
                     shared.b(position.slot) + p * kBytesOfProduct + first_b * kLineBytes, k * TileK,
                     column + first_b, matrices_b[p]);
    }
  }

  template <int Pass>
  CF_DEVICE static void multiply_pass(Shared const& shared, Position& position, Accumulator& accumulator,
                                      int member, int k_blocks) {
    using LayoutA = SharedLayout<MajorA<Pass>>;
    using LayoutB = SharedLayout<MajorB<Pass>>;
    uint32_t const first_row = member * kFragments * kBlockBytes;
#pragma unroll 1
    for (int k = 0; k < k_blocks; ++k) {
      wait(shared.full[position.slot], position.phase);
      uint32_t a = uniform(shared_address(shared.a(position.slot)) + first_row);
      uint32_t b = uniform(shared_address(shared.b(position.slot)));
      cute::warpgroup_arrive();
#pragma unroll
      for (int step = 0; step < TileK / kWgmmaK; ++step) {
#pragma unroll
        for (int i = 0; i < kFragments; ++i)
          multiply_step<Pass>(wgmma_descriptor<MajorA<Pass>>(a + i * kBlockBytes + step * LayoutA::kStep),
                              wgmma_descriptor<MajorB<Pass>>(b + step * LayoutB::kStep), accumulator[i],
                              k > 0 || step > 0);
      }
      cute::warpgroup_commit_batch();
      if (Pass > 0 || k > 0) {  // the block before, of this pass or the last of the one before
        cute::warpgroup_wait<1>();
        release(shared, previous(position));
      }
      position.advance();
    }
  }
  template <int Pass>
  CF_DEVICE static void multiply_step(uint64_t a, uint64_t b, float (&d)[kColumns / 2], bool accumulate) {
    constexpr int kFirst = Pass * kColumnsOfPass / 2;  // of the accumulators
    wgmma<T, kFirstColumns, kMNMajorA<Pass>, kMNMajorB<Pass>, kFirst>(a, b, d, accumulate);
    if constexpr (kFirstColumns < kColumnsOfPass)
      wgmma<T, kColumnsOfPass - kFirstColumns, kMNMajorA<Pass>, kMNMajorB<Pass>, kFirst + kFirstColumns / 2>(
          a, advance_descriptor(b, kFirstColumns * kLineBytes), d, accumulate);
  }

  static constexpr CacheHint kHint = CacheHint::kNormal;

  // A box of the CTA's part, to all CTAs that share it: those of the cluster, or this one.
  template <class Part, class... Coordinate>
  CF_DEVICE static void load_box(CUtensorMap const& map, uint64_t* full, uint8_t* to, Coordinate... at) {
    if constexpr (Part::kIsShared)
      tma_multicast(map, full, kHint, (1 << kClusterSize) - 1, to, at...);
    else
      tma_load(map, full, kHint, to, at...);
  }
  template <int Pass>
  CF_DEVICE static void load_a(Maps const& maps, uint64_t* full, uint8_t* to, int k, int row, int matrix) {
    auto const load = [&](uint8_t* box, int inner, int outer) {
      if constexpr (kBatched)
        load_box<PartA>(maps.a[Pass], full, box, inner, outer, matrix);
      else
        load_box<PartA>(maps.a[Pass], full, box, inner, outer);
    };
    if constexpr (kMNMajorA<Pass>) {
#pragma unroll
      for (int i = 0; i < PartA::kRows; i += kRowsOfBlock) load(to + i * kLineBytes, row + i, k);
    } else {
      load(to, k, row);
    }
  }
  template <int Pass>
  CF_DEVICE static void load_b(Maps const& maps, int product, uint64_t* full, uint8_t* to, int k, int column,
                               int matrix) {
    if constexpr (kPermutedB) {
#pragma unroll
      for (int group = 0; group < PartB::kRows / 32; group += kGroupsOfBox) {
        bool const partial = kPartialColumns != 0 && column / 32 + group == N / 32;
        load_box<PartB>(partial ? maps.b_partial[product] : maps.b[product], full,
                        to + group * 32 * kLineBytes, k, 0, 0, 0, partial ? 0 : column / 32 + group);
      }
    } else {
      auto const load = [&](uint8_t* box, int inner, int outer) {
        if constexpr (kBatched)
          load_box<PartB>(maps.b[product], full, box, inner, outer, matrix);
        else
          load_box<PartB>(maps.b[product], full, box, inner, outer);
      };
      if constexpr (kMNMajorB<Pass>) {
#pragma unroll
        for (int n = 0; n < PartB::kRows; n += kRowsOfBlock) load(to + n * kLineBytes, column + n, k);
      } else {
        load(to, k, column);
      }
    }
  }

  CF_DEVICE static uint32_t previous(Position const& position) {
    return position.slot == 0 ? kStages - 1 : position.slot - 1;
  }
  CF_DEVICE static void release(Shared const& shared, uint32_t slot) {
    uint32_t thread = threadIdx.x % kWarpgroup;
    if constexpr (kClusterSize == 1) {
      if (thread == 0) arrive(shared.empty[slot]);
    } else {
      if (thread < kClusterSize) arrive_at(shared.empty[slot], thread);
    }
  }
};

}  // namespace comfuse::sm90
