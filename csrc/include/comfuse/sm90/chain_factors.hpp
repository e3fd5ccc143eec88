// The factors of a chain of two GEMMs, Y = post(middle(X W0^T) W1^T), in shared memory: X's rows, 64 for each
// warpgroup, and the blocks of W0 and W1.
//
// A block is 64 of the middle's H columns.  Of W0 it is 64 rows of each product, the products one after the
// other in each 64 k's, so that one wgmma covers both; of W1, 64 k's of all rows.  Both are read as they are,
// but W1's rows are permuted as mainloop.hpp says, for the sake of the program behind.  As there, not where
// it is N-major or the chain is batched.
//
// Blocks beyond H are zeros, of W1 too, and so are rows of X beyond M and k's beyond K: TMA fills them.
#pragma once

#include <cuda.h>

#include "comfuse/sm90/instructions.hpp"
#include "comfuse/sm90/shared_layout.hpp"

namespace comfuse::sm90 {

template <class FirstGemm, class SecondGemm, class ScheduleT, class RowsT, class WeightsT>
struct ChainFactors {
  using T = typename FirstGemm::Element;
  using Schedule = ScheduleT;
  using Weights = WeightsT;
  static constexpr int K = RowsT::K, H = FirstGemm::N, N = SecondGemm::N;
  static constexpr int kProducts = FirstGemm::kProducts, kWarpgroups = Schedule::kWarpgroups,
                       kBuffers = Schedule::kBuffers, kRing = Weights::kRing;
  using MajorSecond = typename SecondGemm::MajorB;
  static constexpr bool kRowsInRegisters = RowsT::kInRegisters, kBatched = FirstGemm::kBatched;
  static constexpr bool kMNMajorSecond = std::is_same<MajorSecond, MNMajor>::value,
                        kPermutedSecond = !kMNMajorSecond && !kBatched;
  static constexpr int kBlock = Schedule::kBlock, kBlocks = (H + kBlock - 1) / kBlock;
  static constexpr int kSteps = (K + kWgmmaK - 1) / kWgmmaK, kBoxesK = (K + 63) / 64;
  static constexpr int TileN = (N + 63) / 64 * 64;
  static_assert(sizeof(T) == 2 && std::is_same<T, typename SecondGemm::Element>::value);
  static_assert(K % 8 == 0 && H % 8 == 0 && N % 8 == 0, "rows start at multiples of 16 bytes");
  static_assert(kBlock == kRowsOfBlock && kBlock * sizeof(T) == kLineBytes, "a block is one swizzled line");
  static_assert(kWarpgroups == 2 || kWarpgroups == 3);
  static_assert(kBuffers == 1 || kBuffers == 2);
  static_assert(kBatched == SecondGemm::kBatched && (!kBatched || !(Weights::kFirst || Weights::kSecond)),
                "weights of a batch pass by");
  static_assert(kProducts <= 2 && SecondGemm::kProducts == 1 && TileN <= 256);

  // ---- bytes
  static constexpr int kRowBytes = kBoxesK * kBlockBytes;  // X's rows of one tile
  static constexpr int kFirstBytes = kProducts * kBoxesK * kBlockBytes, kSecondBytes = TileN * kLineBytes;
  static constexpr int kSlotBytes =  // of the ring
      Weights::kFirst ? kSecondBytes : (kFirstBytes > kSecondBytes ? kFirstBytes : kSecondBytes);
  static constexpr int kResidentBlocks = kBlocks * (Weights::kFirst + Weights::kSecond);
  static constexpr int kSecondOffset = Weights::kFirst ? kBlocks * kFirstBytes : 0;
  static constexpr int kRingOffset = kSecondOffset + (Weights::kSecond ? kBlocks * kSecondBytes : 0);
  static constexpr int kWeightBytes = kRingOffset + kRing * kSlotBytes;
  static constexpr int kWeightBarriers = kResidentBlocks + 2 * kRing;
  static constexpr int kStreamedBlocks = 2 * kBlocks - kResidentBlocks;  // each tile needs all of them
  // Both GEMMs are in flight at once.
  static_assert(kStreamedBlocks == 0 || kRing >= (Weights::kFirst ? 1 : 2));

  // The last 32 of W1's rows may be 8, 16 or 24: a tensor map of their own says so.
  static constexpr int kPartialColumns = kPermutedSecond ? N % 32 : 0;
  static constexpr int kGroupsOfBox = kPartialColumns == 0 ? TileN / 32 : 1;

  // From batch to batch, as in Mainloop::Maps.
  struct OneBatch {};
  struct Steps {
    int rows_step, first_step[kProducts], second_step;
  };
  struct Maps : std::conditional_t<kBatched, Steps, OneBatch> {
    CUtensorMap rows, first[kProducts], second, second_partial;
  };

  // In shared memory.  Barriers: of each resident block, then the ring's full and empty ones.
  struct Shared {
    uint8_t* weights;
    uint64_t* barriers;
    CF_DEVICE uint64_t& resident(int block) const { return barriers[block]; }
    CF_DEVICE uint64_t& full(uint32_t slot) const { return barriers[kResidentBlocks + slot]; }
    CF_DEVICE uint64_t& empty(uint32_t slot) const { return barriers[kResidentBlocks + kRing + slot]; }
    CF_DEVICE uint8_t* slot(uint32_t slot) const { return weights + kRingOffset + slot * kSlotBytes; }

    CF_DEVICE void init() const {
      for (int block = 0; block < kResidentBlocks; ++block) Barrier::init(&resident(block), 1);
      for (int i = 0; i < kRing; ++i) {
        Barrier::init(&full(i), 1);
        Barrier::init(&empty(i), 4 * kWarpgroups);
      }
    }
  };
  using Position = RingPosition<(kRing > 0 ? kRing : 1)>;

  // ---- loads, by one thread
  static constexpr uint64_t kOnce = uint64_t(cute::TMA::CacheHintSm90::EVICT_FIRST),
                            kAgain = uint64_t(cute::TMA::CacheHintSm90::EVICT_LAST);
  template <uint64_t kHint>
  CF_DEVICE static void load_rows(Maps const& maps, uint64_t* full, uint8_t* to, int row, int batch) {
    Barrier::arrive_and_expect_tx(full, kRowBytes);
#pragma unroll
    for (int box = 0; box < kBoxesK; ++box) {
      uint8_t* const part = to + box * kBlockBytes;
      if constexpr (kBatched)
        cute::SM90_TMA_LOAD_3D::copy(&maps.rows, full, kHint, part, box * 64, row, batch * maps.rows_step);
      else
        cute::SM90_TMA_LOAD_2D::copy(&maps.rows, full, kHint, part, box * 64, row);
    }
  }
  CF_DEVICE static void load_first(Maps const& maps, uint64_t* full, uint8_t* to, int block, int batch) {
    Barrier::arrive_and_expect_tx(full, kFirstBytes);
#pragma unroll
    for (int box = 0; box < kBoxesK; ++box) {
#pragma unroll
      for (int p = 0; p < kProducts; ++p) {
        uint8_t* const part = to + (box * kProducts + p) * kBlockBytes;
        if constexpr (kBatched)
          cute::SM90_TMA_LOAD_3D::copy(&maps.first[p], full, kAgain, part, box * 64, block * kBlock,
                                       batch * maps.first_step[p]);
        else
          cute::SM90_TMA_LOAD_2D::copy(&maps.first[p], full, kAgain, part, box * 64, block * kBlock);
      }
    }
  }
  CF_DEVICE static void load_second(Maps const& maps, uint64_t* full, uint8_t* to, int block, int batch) {
    Barrier::arrive_and_expect_tx(full, kSecondBytes);
    if constexpr (kPermutedSecond) {
#pragma unroll
      for (int group = 0; group < TileN / 32; group += kGroupsOfBox) {
        bool const partial = kPartialColumns != 0 && group == N / 32;
        cute::SM90_TMA_LOAD_5D::copy(partial ? &maps.second_partial : &maps.second, full, kAgain,
                                     to + group * 32 * kLineBytes, block * kBlock, 0, 0, 0,
                                     partial ? 0 : group);
      }
    } else if constexpr (kMNMajorSecond) {
#pragma unroll
      for (int n = 0; n < TileN; n += kRowsOfBlock)
        load_plain(maps, full, to + n * kLineBytes, n, block * kBlock, batch);
    } else {
      load_plain(maps, full, to, block * kBlock, 0, batch);
    }
  }
  // A box of W1 as it is.
  CF_DEVICE static void load_plain(Maps const& maps, uint64_t* full, uint8_t* to, int inner, int outer,
                                   int batch) {
    if constexpr (kBatched)
      cute::SM90_TMA_LOAD_3D::copy(&maps.second, full, kAgain, to, inner, outer, batch * maps.second_step);
    else
      cute::SM90_TMA_LOAD_2D::copy(&maps.second, full, kAgain, to, inner, outer);
  }

  // All blocks, in the order in which the consumers wait for them; the streamed ones again for each round
  // of tiles, `batch_of(round)`.
  template <class BatchOf>
  CF_DEVICE static void load_weights(Maps const& maps, Shared const& shared, int rounds,
                                     BatchOf const& batch_of) {
    if constexpr (kResidentBlocks > 0) {
#pragma unroll 1
      for (int block = 0; block < kBlocks; ++block) {
        load_first(maps, &shared.resident(block), shared.weights + block * kFirstBytes, block, 0);
        if constexpr (Weights::kSecond)
          load_second(maps, &shared.resident(kBlocks + block),
                      shared.weights + kSecondOffset + block * kSecondBytes, block, 0);
      }
    }
    if constexpr (kStreamedBlocks > 0) {
      Position position;
      auto const next_slot = [&] {
        uint32_t const slot = position.slot;
        wait(shared.empty(slot), position.phase ^ 1);
        position.advance();
        return slot;
      };
      auto const stream_first = [&](int block, int batch) {
        if (Weights::kFirst || block >= kBlocks) return;
        uint32_t const slot = next_slot();
        load_first(maps, &shared.full(slot), shared.slot(slot), block, batch);
      };
#pragma unroll 1
      for (int round = 0; round < rounds; ++round) {
        int const batch = batch_of(round);
#pragma unroll 1
        for (int block = 0; block < kBuffers; ++block) stream_first(block, batch);
#pragma unroll 1
        for (int block = 0; block < kBlocks; ++block) {
          uint32_t const slot = next_slot();
          load_second(maps, &shared.full(slot), shared.slot(slot), block, batch);
          stream_first(block + kBuffers, batch);
        }
      }
    }
  }
};

// One warpgroup's view of the weights.  Blocks are taken in the order of `load_weights`.
template <class Factors>
class WeightReader {
  using Weights = typename Factors::Weights;

 public:
  CF_DEVICE explicit WeightReader(typename Factors::Shared const& shared)
      : shared_(shared), weights_(uniform(cute::cast_smem_ptr_to_uint(shared.weights))) {}

  // Address of a block, once it is there.
  CF_DEVICE uint32_t first(int block) {
    if constexpr (Weights::kFirst) return resident(block, block * Factors::kFirstBytes);
    return take();
  }
  CF_DEVICE uint32_t second(int block) {
    if constexpr (Weights::kSecond)
      return resident(Factors::kBlocks + block, Factors::kSecondOffset + block * Factors::kSecondBytes);
    return take();
  }
  // By each warp, when the block that was taken last is read;
  CF_DEVICE void free_first() const {
    if constexpr (!Weights::kFirst) free(1);
  }
  // the same, but that `firsts` blocks of W0 were taken since.
  CF_DEVICE void free_second(int firsts) const {
    if constexpr (!Weights::kSecond) free(1 + (Weights::kFirst ? 0 : firsts));
  }
  // A wait for the block that was taken last, which has come and is not freed.  It costs little, and ptxas
  // moves no code over it.
  CF_DEVICE void separate() const {
    if constexpr (Weights::kFirst)
      wait(shared_.resident(0), 0);
    else if (taken_.slot == 0)
      wait(shared_.full(Factors::kRing - 1), taken_.phase ^ 1);
    else
      wait(shared_.full(taken_.slot - 1), taken_.phase);
  }
  // Behind a tile: what stays has come.
  CF_DEVICE void finish_tile() { first_tile_done_ = true; }
  // Of a round in which this warpgroup has no tile.
  CF_DEVICE void skip_tile() {
#pragma unroll 1
    for (int block = 0; block < Factors::kStreamedBlocks; ++block) {
      take();
      free(1);
    }
  }

 private:
  CF_DEVICE uint32_t resident(int block, int offset) const {
    if (!first_tile_done_) wait(shared_.resident(block), 0);  // its only phase
    // Where the compiler sees that descriptors are the same for all tiles, it computes them before the first
    // one and keeps them in registers, or spills them.
    uint32_t weights = weights_;
    asm volatile("" : "+r"(weights));
    return weights + offset;
  }
  CF_DEVICE uint32_t take() {
    uint32_t const slot = taken_.slot;
    wait(shared_.full(slot), taken_.phase);
    taken_.advance();
    return uniform(cute::cast_smem_ptr_to_uint(shared_.slot(slot)));
  }
  CF_DEVICE void free(int ago) const {
    int const slot = int(taken_.slot) - ago;
    __syncwarp();
    if (lane_id() == 0) arrive(shared_.empty(slot < 0 ? slot + Factors::kRing : slot));
  }

  typename Factors::Shared shared_;
  uint32_t weights_;
  typename Factors::Position taken_;
  bool first_tile_done_ = false;
};

}  // namespace comfuse::sm90
