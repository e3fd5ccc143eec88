// The factors of a chain of GEMMs, Y = post(middle(X W0^T) W1^T), or of more in a row, in shared memory: X's
// rows, 64 for each warpgroup, and the blocks of W0, W1 and those behind.
//
// A block is 64 of the middle's H columns.  Of W0 it is 64 rows of each product, the products one after the
// other in each 64 k's, so that one wgmma covers both; of W1, 64 k's of all rows, likewise of the rest
// (chain_later.hpp).
//
// Blocks beyond H are zeros, of W1 too, and so are rows of X beyond M and k's beyond K: TMA fills them.
#pragma once

#include <utility>

#include "comfuse/sm90/chain_later.hpp"

namespace comfuse::sm90 {

template <class FirstGemm, class SecondGemm, class ScheduleT, class RowsT, class WeightsT, class FurtherT>
struct ChainFactors {
  using T = typename FirstGemm::Element;
  using Schedule = ScheduleT;
  using Weights = WeightsT;
  static constexpr int K = RowsT::K, H = FirstGemm::N;
  static constexpr int kProducts = FirstGemm::kProducts, kWarpgroups = Schedule::kWarpgroups,
                       kBuffers = Schedule::kBuffers, kRing = Weights::kRing;
  static constexpr bool kRowsInRegisters = RowsT::kInRegisters, kBatched = FirstGemm::kBatched;
  static constexpr int kBlock = Schedule::kBlock, kBlocks = (H + kBlock - 1) / kBlock;
  static constexpr int kSteps = (K + kWgmmaK - 1) / kWgmmaK, kBoxesK = (K + 63) / 64;
  static_assert(sizeof(T) == 2 && std::is_same<T, typename SecondGemm::Element>::value);
  static_assert(K % 8 == 0 && H % 8 == 0, "rows start at multiples of 16 bytes");
  static_assert(kBlock == kRowsOfBlock && kBlock * sizeof(T) == kLineBytes, "a block is one swizzled line");
  static_assert(kWarpgroups == 2 || kWarpgroups == 3);
  static_assert(kBuffers == 1 || kBuffers == 2);
  static_assert(kBatched == SecondGemm::kBatched &&
                    (!kBatched || !(Weights::kFirst || Weights::kLater || FurtherT::size > 0)),
                "weights of a batch pass by, those of two GEMMs");
  static_assert(kProducts <= 2);

  // ---- the later factors, by number
  using Later = typename LaterFactors<H, SecondGemm, FurtherT>::type;
  static constexpr int kLater = Later::size;
  template <int kFactor>
  using LaterAt = typename MemberOf<kFactor, Later>::type;
  using Second = LaterAt<0>;
  using Last = LaterAt<kLater - 1>;
  static constexpr int N = Last::N, TileN = Last::TileN;
  // The accumulators of all later GEMMs, one after the other: ptxas holds those of each apart else.
  using Results = float[widest_of_later(Later{}) / 2];
  static constexpr int kLaterBlocks = blocks_of_later(kLater, Later{});

  // ---- bytes
  static constexpr int kRowBytes = kBoxesK * kBlockBytes;  // X's rows of one tile
  static constexpr int kFirstBytes = kProducts * kBoxesK * kBlockBytes,
                       kLargestLater = largest_of_later(Later{});
  static constexpr int kSlotBytes =  // of the ring
      Weights::kFirst ? kLargestLater : (kFirstBytes > kLargestLater ? kFirstBytes : kLargestLater);
  static constexpr int kResidentBlocks = Weights::kFirst * kBlocks + Weights::kLater * kLaterBlocks;
  static constexpr int kLaterOffset = Weights::kFirst ? kBlocks * kFirstBytes : 0;
  static constexpr int kRingOffset = kLaterOffset + (Weights::kLater ? bytes_of_later(kLater, Later{}) : 0);
  static constexpr int kWeightBytes = kRingOffset + kRing * kSlotBytes;
  static constexpr int kWeightBarriers = kResidentBlocks + 2 * kRing;
  static constexpr int kStreamedBlocks =
      kBlocks + kLaterBlocks - kResidentBlocks;  // each tile needs them all
  // Of a later factor's first block, where all stay: its barrier, and where it lies.
  template <int kFactor>
  static constexpr int kFirstBarrier = kBlocks + blocks_of_later(kFactor, Later{});
  template <int kFactor>
  static constexpr int kOffset = kLaterOffset + bytes_of_later(kFactor, Later{});
  // Both GEMMs are in flight at once.
  static_assert(kStreamedBlocks == 0 || kRing >= (Weights::kFirst ? 1 : 2));

  // And which matrix of each is a batch's, where there are batches.
  struct Maps {
    CUtensorMap rows, first[kProducts];
    LaterMaps later[kLater];
    BatchSteps<int> rows_batches, first_batches[kProducts];
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
  static constexpr CacheHint kOnce = CacheHint::kEvictFirst, kAgain = CacheHint::kEvictLast;
  CF_DEVICE static void load_rows(Maps const& maps, CacheHint hint, uint64_t* full, uint8_t* to, int row,
                                  int batch) {
    Barrier::arrive_and_expect_tx(full, kRowBytes);
    [[maybe_unused]] int const matrix = kBatched ? maps.rows_batches.of(batch) : 0;
#pragma unroll
    for (int box = 0; box < kBoxesK; ++box) {
      uint8_t* const part = to + box * kBlockBytes;
      if constexpr (kBatched)
        tma_load(maps.rows, full, hint, part, box * 64, row, matrix);
      else
        tma_load(maps.rows, full, hint, part, box * 64, row);
    }
  }
  CF_DEVICE static void load_first(Maps const& maps, uint64_t* full, uint8_t* to, int block, int batch) {
    Barrier::arrive_and_expect_tx(full, kFirstBytes);
    [[maybe_unused]] int matrices[kProducts] = {};
    if constexpr (kBatched)
      for (int p = 0; p < kProducts; ++p) matrices[p] = maps.first_batches[p].of(batch);
#pragma unroll
    for (int box = 0; box < kBoxesK; ++box) {
#pragma unroll
      for (int p = 0; p < kProducts; ++p) {
        uint8_t* const part = to + (box * kProducts + p) * kBlockBytes;
        if constexpr (kBatched)
          tma_load(maps.first[p], full, kAgain, part, box * 64, block * kBlock, matrices[p]);
        else
          tma_load(maps.first[p], full, kAgain, part, box * 64, block * kBlock);
      }
    }
  }
  template <int kFactor>
  CF_DEVICE static void load_later(Maps const& maps, uint64_t* full, uint8_t* to, int block, int batch) {
    int matrix = 0;
    if constexpr (kBatched) matrix = maps.later[kFactor].batches.of(batch);
    LaterAt<kFactor>::template load<kAgain>(maps.later[kFactor], full, to, block, matrix);
  }
  // Calls `f` with the number of each factor behind the second, as a type.
  template <class F>
  CF_DEVICE static void for_each_further(F const& f) {
    for_numbers(f, std::make_integer_sequence<int, kLater - 1>{});
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
        if constexpr (Weights::kLater) load_resident<0>(maps, shared, block);
      }
      if constexpr (Weights::kLater)
        for_each_further([&](auto factor) {
#pragma unroll 1
          for (int block = 0; block < LaterAt<factor>::kBlocks; ++block)
            load_resident<factor>(maps, shared, block);
        });
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
          load_later<0>(maps, &shared.full(slot), shared.slot(slot), block, batch);
          stream_first(block + kBuffers, batch);
        }
        for_each_further([&](auto factor) {
#pragma unroll 1
          for (int block = 0; block < LaterAt<factor>::kBlocks; ++block) {
            uint32_t const slot = next_slot();
            load_later<factor>(maps, &shared.full(slot), shared.slot(slot), block, batch);
          }
        });
      }
    }
  }

 private:
  template <int kFactor>
  CF_DEVICE static void load_resident(Maps const& maps, Shared const& shared, int block) {
    load_later<kFactor>(maps, &shared.resident(kFirstBarrier<kFactor> + block),
                        shared.weights + kOffset<kFactor> + block * LaterAt<kFactor>::kBlockBytes, block, 0);
  }
  template <class F, int... I>
  CF_DEVICE static void for_numbers(F const& f, std::integer_sequence<int, I...>) {
    (f(std::integral_constant<int, I + 1>{}), ...);
  }
};

// One warpgroup's view of the weights.  Blocks are taken in the order of `load_weights`.
template <class Factors>
class WeightReader {
  using Weights = typename Factors::Weights;

 public:
  CF_DEVICE explicit WeightReader(typename Factors::Shared const& shared)
      : shared_(shared), weights_(uniform(shared_address(shared.weights))) {}

  // Address of a block, once it is there.
  CF_DEVICE uint32_t first(int block) {
    if constexpr (Weights::kFirst) return resident(block, block * Factors::kFirstBytes);
    return take();
  }
  template <int kFactor>
  CF_DEVICE uint32_t later(int block) {
    if constexpr (Weights::kLater)
      return resident(
          Factors::template kFirstBarrier<kFactor> + block,
          Factors::template kOffset<kFactor> + block * Factors::template LaterAt<kFactor>::kBlockBytes);
    return take();
  }
  // By each warp, when the block that was taken last is read;
  CF_DEVICE void free_first() const {
    if constexpr (!Weights::kFirst) free(1);
  }
  // the same, but that `firsts` blocks of W0 were taken since.
  CF_DEVICE void free_later(int firsts) const {
    if constexpr (!Weights::kLater) free(1 + (Weights::kFirst ? 0 : firsts));
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
    return uniform(shared_address(shared_.slot(slot)));
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
