// The kernel layer of a chain of GEMMs: persistent, warp-specialised.  Each of two or three consumer
// warpgroups computes tiles of 64 rows of its own, from X to Y; what one does in the middle or behind hides
// behind the wgmmas of the others.  In the producer warpgroup a warp for each of them loads its rows and its
// tile operands, so that none waits for another's, and the last warp loads the weights for all.
#pragma once

#include "comfuse/abi.h"
#include "comfuse/sm90/batches.hpp"
#include "comfuse/sm90/chain_mainloop.hpp"
#include "comfuse/sm90/chain_ring.hpp"
#include "comfuse/sm90/chain_scheduler.hpp"
#include "comfuse/sm90/divisor.hpp"
#include "comfuse/sm90/epilogue.hpp"
#include "comfuse/sm90/reductions.hpp"

namespace comfuse::sm90 {

template <class FirstGemm, class MiddleT, class SecondGemm, class ScheduleT, class RowsT, class WeightsT,
          class SlotsT, class OperandsT, class VectorsT, class ProgramT, class HandedT = NothingHanded,
          class FurtherT = Further<>>
struct FusedChain {
  using Factors = ChainFactors<FirstGemm, SecondGemm, ScheduleT, RowsT, WeightsT, FurtherT>;
  using Element = typename Factors::T;
  using Middle = MiddleT;
  using Program = ProgramT;
  using Handed = HandedT;
  using Betweens = typename ProgramsBetween<Factors::H, Middle, SecondGemm, FurtherT>::type;
  using Middles = typename MiddlesOf<Betweens>::type;
  using Phases = typename Concatenate<Middles, PhasesOf<Program>>::type;
  using OperandList = OperandsT;
  using ColumnVectors =  // of the program behind the last GEMM
      typename Filter<IsColumnVector, OuterOperandsOf<List<Middles, Handed>, OperandList>>::type;
  using Scheduler = ChainScheduler<Factors::kWarpgroups, Factors::kBatched>;
  using Item = typename Scheduler::Item;
  static_assert(ColReductionsOf<Program>::size + FullReductionsOf<Program>::size == 0,
                "a chain has no collector");
  static_assert(Factors::kLater == 1 || Handed::Effects::size == 0, "nothing passes a GEMM by");

  // ---- what the program behind the last GEMM is told: its tiles, each a team's of one warpgroup
  static constexpr int N = Factors::N, TileM = 64, TileN = Factors::TileN;
  using ClusterShape = Cluster<1, 1>;
  static constexpr int kProducts = 1, kFragments = 1, kTeams = 1, kTeamSize = 1;
  static constexpr bool kBatched = Factors::kBatched, kClippedN = N % TileN != 0, kPairs = false;
  using Accumulator = float[kFragments][TileN / 2];

  // ---- threads
  static constexpr int kWarpgroups = Factors::kWarpgroups;
  static constexpr int kThreads = (1 + kWarpgroups) * kWarpgroup;
  // The registers that a CTA starts with, 168 or 128 a thread, dealt out anew.
  static constexpr int kProducerRegisters = kWarpgroups == 2 ? 24 : 32,
                       kConsumerRegisters = kWarpgroups == 2 ? 240 : 160;

  // ---- operands
  static constexpr int kFactorsB = Factors::kProducts + Factors::kLater;
  static constexpr bool kOwnA = false;
  static constexpr int kTileOperands = count_of<IsTile>(OperandList{});
  static constexpr int kSlots = kTileOperands > 0 ? SlotsT::value : 0;  // of each warpgroup
  static constexpr int kSlotBytes = 64 * 32 * max_tile_element(OperandList{});
  static constexpr int kSlotsPerItem = 0;  // of a ring that teams share: none is
  template <class... P>
  static constexpr int most_tiles(List<P...>) {
    int most = 0;
    ((most = P::Tiles::size > most ? P::Tiles::size : most), ...);
    return most;
  }
  static_assert(kSlots >= most_tiles(Phases{}), "a phase holds a slot for each operand");
  static_assert(OperandList::size <= CF_MAX_OPERANDS);
  using Ring = ChainRing<FusedChain>;
  // What a tile's phases read, where one phase reads it all: the ring then holds whole tiles.
  static constexpr int kSlotsPerTile = most_tiles(Phases{}) * TileN / kFragmentColumns;
  static constexpr bool kHoldsTile =
      kSlotsPerTile > 0 && kSlots % (kSlotsPerTile > 0 ? kSlotsPerTile : 1) == 0 &&
      count_of<HasTiles>(Phases{}) == 1 && count_of<HasTiles>(PhasesOf<Program>{}) == 1;
  // The operand that may be X itself, and then is read from X's rows.  These have two stages then, so that
  // the next ones come meanwhile: the slots, which nothing else fills, can be the second.
  using RowsOperand = typename RowsT::Operand;
  static constexpr bool kSharesRows = !std::is_void<RowsOperand>::value;
  template <class Operand>
  static constexpr bool kMayBeRows = std::is_same<Operand, RowsOperand>::value;
  template <class Operand>
  static constexpr int kColumnsOf = columns_between<Operand>(N, Betweens{});

  // ---- values a column and a row.  They wait for no producer: the former, which are the same for all tiles,
  // are computed at the start; the latter are copied by the warp that has their rows.
  static constexpr int kMiddleBytes = vector_bytes_between<void, VectorsT>(Betweens{});
  template <class V>
  static constexpr int middle_offset = vector_offset_between<V, VectorsT>(Betweens{});
  static constexpr int kVectorBytes = 0;  // that a producer brings
  using OuterVectors = typename Concatenate<OuterOperandsOf<Middles, VectorsT>, ColumnVectors,
                                            typename VectorsHanded<typename Handed::Effects>::type>::type;
  static constexpr int kOuterBytes = vector_bytes<void, TileM, TileN>(OuterVectors{});
  template <class V>
  static constexpr int vector_offset = vector_offset_among<V, TileM, TileN>(OuterVectors{});
  static constexpr int kOuterBuffers = count_of<IsColumnVector>(OuterVectors{}) > 0 ? kWarpgroups : 1;
  static constexpr bool kFolds = count_of<IsHandFold>(typename Handed::Effects{}) > 0;

  // ---- shared memory: weights, each warpgroup's rows, each one's tile slots, vectors, barriers
  static constexpr int kRowsOffset = Factors::kWeightBytes;
  static constexpr int row_barriers(int row_stages) { return kSharesRows ? 2 : row_stages; }
  static constexpr int shared_bytes(int row_stages) {
    return kRowsOffset + kWarpgroups * (row_stages * Factors::kRowBytes + kSlots * kSlotBytes) +
           kMiddleBytes + kOuterBuffers * kOuterBytes +
           8 * (Factors::kWeightBarriers + 2 * kWarpgroups * (row_barriers(row_stages) + kSlots));
  }
  static constexpr int kMaxSharedBytes = 232448;
  static constexpr int kRowStages = shared_bytes(2) <= kMaxSharedBytes ? 2 : 1,
                       kRowBarriers = row_barriers(kRowStages);
  static constexpr int kSlotsOffset = kRowsOffset + kWarpgroups * kRowStages * Factors::kRowBytes;
  static constexpr int kMiddleOffset = kSlotsOffset + kWarpgroups * kSlots * kSlotBytes;
  static constexpr int kOuterOffset = kMiddleOffset + kMiddleBytes;
  static constexpr int kBarriersOffset = kOuterOffset + kOuterBuffers * kOuterBytes;
  static constexpr int kSharedBytes = shared_bytes(kRowStages);
  static_assert(kSharedBytes <= kMaxSharedBytes, "the plan needs more shared memory than a CTA can have");

  template <class Operand>
  static constexpr bool fits_rows(Operand*) {
    return kHoldsTile && !kBatched && Factors::K == N &&
           (kRowStages == 2 || kSlots * kSlotBytes >= Factors::kRowBytes) &&
           std::is_same<typename ElementOf<Operand>::type, Element>::value;
  }
  static constexpr bool fits_rows(void*) { return true; }
  static_assert(fits_rows(static_cast<RowsOperand*>(nullptr)));

  // ---- outputs
  static constexpr int kOutputs = output_count(StoresOf<Program>{});
  static_assert(kOutputs <= CF_MAX_OUTPUTS);

  struct Params : std::conditional_t<kFolds, SecondFactor, NoSecondFactor> {
    typename Factors::Maps factors;
    CUtensorMap tiles[kTileOperands > 0 ? kTileOperands : 1];
    BatchSteps<int> tile_batches[kTileOperands > 0 ? kTileOperands : 1];
    CfTensor operands[OperandList::size > 0 ? OperandList::size : 1], outputs[kOutputs > 0 ? kOutputs : 1];
    BatchSteps<int64_t> operand_batches[kBatched && OperandList::size > 0 ? OperandList::size : 1];
    float scalars[CF_MAX_SCALARS];
    int m, row_blocks;
    bool rows_are_operand;
    Divisor blocks_of_batch;
    Workspace workspace;
  };

  static_assert(!kBatched || (vector_bytes<void, 1, 1>(OperandList{}) == 0 && !kFolds),
                "vectors are for all batches");
  // Where the batch's part of a tensor begins.
  CF_DEVICE static int64_t batch_of_operand(Params const& params, int operand, Item const& item) {
    if constexpr (kBatched)
      return params.operand_batches[operand].of(item.batch);
    else
      return 0;
  }
  CF_DEVICE static int64_t batch_of_output(Params const& params, int output, Item const& item) {
    if constexpr (kBatched)
      return item.batch * params.outputs[output].batch_stride;
    else
      return 0;
  }

  CF_DEVICE static bool rows_are_operand(Params const& params) {
    if constexpr (kSharesRows)
      return params.rows_are_operand;
    else
      return false;
  }

  CF_DEVICE static void run(Params const& params) {
    extern __shared__ __align__(1024) uint8_t memory[];
    auto const weights = weights_in(memory);
    if (threadIdx.x == 0) {
      weights.init();
      for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup) {
        auto const own = shared_of(memory, warpgroup);
        for (int i = 0; i < kRowBarriers; ++i) {
          Barrier::init(own.rows_full + i, 1);
          Barrier::init(own.rows_empty + i, 4);
        }
        for (int i = 0; i < kSlots; ++i) {
          Barrier::init(own.ring.full + i, 1);
          Barrier::init(own.ring.empty + i, 4);
        }
      }
      fence_barrier_init();
    }
    __syncthreads();

    int const warp = warp_id();
    if (warp < 4) {
      cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
      if (lane_id() == 0) {
        if (warp < kWarpgroups)
          produce_rows(params, shared_of(memory, warp), warp);
        else if (warp == 3)
          Factors::load_weights(params.factors, weights, rounds(params, 0), [&](int round) {
            return Scheduler::batch_of(params.blocks_of_batch, round);
          });
      }
    } else {
      cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
      compute_vectors(params, memory);
      consume(params, memory, warp / 4 - 1);
    }
  }

 private:
  // What a warpgroup shares with the warp that loads for it.
  struct Shared {
    uint8_t* rows;
    uint64_t *rows_full, *rows_empty;
    typename Ring::Shared ring;

    CF_DEVICE uint8_t* rows_of(uint32_t stage) const {
      if constexpr (kRowStages < kRowBarriers) return stage == 0 ? rows : ring.slots;
      return rows + stage * Factors::kRowBytes;
    }
  };
  CF_DEVICE static Shared shared_of(uint8_t* memory, int warpgroup) {
    auto* barriers = reinterpret_cast<uint64_t*>(memory + kBarriersOffset) + Factors::kWeightBarriers +
                     2 * warpgroup * (kRowBarriers + kSlots);
    auto* slot_barriers = barriers + 2 * kRowBarriers;
    return {memory + kRowsOffset + warpgroup * kRowStages * Factors::kRowBytes,
            barriers,
            barriers + kRowBarriers,
            {memory + kSlotsOffset + warpgroup * kSlots * kSlotBytes, slot_barriers, slot_barriers + kSlots}};
  }
  CF_DEVICE static typename Factors::Shared weights_in(uint8_t* memory) {
    return {memory, reinterpret_cast<uint64_t*>(memory + kBarriersOffset)};
  }
  struct RowPosition {
    uint32_t stage = 0, phase = 0;
    CF_DEVICE void advance(Params const& params) {
      if (++stage == row_stages(params)) stage = 0, phase ^= 1;
    }
  };
  CF_DEVICE static uint32_t row_stages(Params const& params) {
    return rows_are_operand(params) ? 2 : kRowStages;
  }
  CF_DEVICE static uint8_t* outer_vectors(uint8_t* memory, int warpgroup) {
    return memory + kOuterOffset + (kOuterBuffers > 1 ? warpgroup * kOuterBytes : 0);
  }
  CF_DEVICE static int rounds(Params const& params, int warpgroup) {
    return Scheduler::rounds(params.row_blocks, params.blocks_of_batch, warpgroup);
  }
  CF_DEVICE static Scheduler scheduler(Params const& params, int warpgroup) {
    return {params.row_blocks, params.blocks_of_batch, warpgroup};
  }

  // ---- one thread for each warpgroup: rows of X, a stage ahead where there are two, and tile operands
  CF_DEVICE static void produce_rows(Params const& params, Shared const& shared, int warpgroup) {
    // Rows that a tile operand is likely to be read from again stay in L2.
    CacheHint const hint =
        kTileOperands > 0 && !rows_are_operand(params) ? CacheHint::kNormal : Factors::kOnce;
    Scheduler ahead = scheduler(params, warpgroup);
    RowPosition rows;
    auto const load_rows = [&] {
      while (ahead.idle()) ahead.advance();
      if (ahead.done()) return;
      wait(shared.rows_empty[rows.stage], rows.phase ^ 1);
      Factors::load_rows(params.factors, hint, shared.rows_full + rows.stage, shared.rows_of(rows.stage),
                         ahead.item().row(), ahead.item().batch);
      rows.advance(params);
      ahead.advance();
    };
    if (row_stages(params) > 1) load_rows();
    RingPosition<(kSlots > 0 ? kSlots : 1)> slots;
#pragma unroll 1
    for (Scheduler tiles = scheduler(params, warpgroup); !tiles.done(); tiles.advance()) {
      if (tiles.idle()) continue;
      load_rows();
      if (!rows_are_operand(params)) produce_phases(params, shared, tiles.item(), slots, Phases{});
    }
  }
  // In the order in which the consumers read them.
  template <class Position, class... P>
  CF_DEVICE static void produce_phases(Params const& params, Shared const& shared, Item const& item,
                                       Position& position, List<P...>) {
    (produce_phase(params, shared, item, position, typename P::Tiles{}), ...);
  }
  template <class Position, class... Leaf>
  CF_DEVICE static void produce_phase(Params const& params, Shared const& shared, Item const& item,
                                      Position& position, List<Leaf...>) {
    if constexpr (sizeof...(Leaf) > 0) {
      constexpr int kColumns[] = {columns_between<Leaf>(TileN, Betweens{})...};
      int const matrices[] = {matrix_of(params, item, Leaf{})...};
#pragma unroll 1
      for (int column = 0; column < kColumns[0]; column += kFragmentColumns) {
        int leaf = 0;
        (produce_slot(params, shared, item.row(), column, matrices[leaf++], position, Leaf{}), ...);
      }
    }
  }
  template <class Leaf>
  CF_DEVICE static int matrix_of(Params const& params, Item const& item, Leaf) {
    if constexpr (kBatched)
      return params.tile_batches[index_among<IsTile, Leaf>(OperandList{})].of(item.batch);
    else
      return 0;
  }
  template <class Position, class Leaf>
  CF_DEVICE static void produce_slot(Params const& params, Shared const& shared, int row, int column,
                                     int matrix, Position& position, Leaf) {
    constexpr int kMap = index_among<IsTile, Leaf>(OperandList{});
    constexpr CacheHint kHint = CacheHint::kNormal;
    wait(shared.ring.empty[position.slot], position.phase ^ 1);
    uint64_t* full = shared.ring.full + position.slot;
    Barrier::arrive_and_expect_tx(full, 64 * 32 * sizeof(typename ElementOf<Leaf>::type));
    uint8_t* const slot = shared.ring.slots + position.slot * kSlotBytes;
    if constexpr (kBatched)
      tma_load(params.tiles[kMap], full, kHint, slot, column, row, matrix);
    else
      tma_load(params.tiles[kMap], full, kHint, slot, column, row);
    position.advance();
  }

  // ---- vectors, by the consumers; entries beyond the matrix are zero
  CF_DEVICE static void compute_vectors(Params const& params, uint8_t* memory) {
    compute_vectors_between(params, memory + kMiddleOffset, Betweens{});
#pragma unroll
    for (int buffer = 0; buffer < kOuterBuffers; ++buffer)
      compute_vectors<N, TileN, false>(params, outer_vectors(memory, buffer), OuterVectors{});
    Folds<FusedChain>::run(params, memory + kOuterOffset, kOuterBuffers, kOuterBytes,
                           typename Handed::Effects{});
    asm volatile("bar.sync 1, %0;" ::"n"(kWarpgroups * kWarpgroup) : "memory");
  }
  template <class... B>
  CF_DEVICE static void compute_vectors_between(Params const& params, uint8_t* to, List<B...>) {
    (compute_vectors<B::kColumns, B::kPadded, true>(params, to,
                                                    MiddleOperandsOf<typename B::Middle, VectorsT>{}),
     ...);
  }
  template <int kEnd, int kCount, bool kOfMiddle, class... V>
  CF_DEVICE static void compute_vectors(Params const& params, uint8_t* to, List<V...>) {
    if constexpr (kOfMiddle)
      (compute_vector<kEnd, kCount>(params, to + middle_offset<V>, V{}), ...);
    else
      (compute_vector<kEnd, kCount>(params, to + vector_offset<V>, V{}), ...);
  }
  template <int kEnd, int kCount, class X>
  CF_DEVICE static void compute_vector(Params const& params, uint8_t* to, Vector<X>) {
#pragma unroll 1
    for (int i = threadIdx.x - kWarpgroup; i < kCount; i += kWarpgroups * kWarpgroup)
      reinterpret_cast<float*>(to)[i] =
          i < kEnd ? evaluate_one(ColumnInMemory<FusedChain>{params, i}, X{}) : 0.f;
  }
  template <int, int, class Other>
  CF_DEVICE static void compute_vector(Params const&, uint8_t*, Other) {}
  // The warp's 16 rows of each column vector; two lanes copy each entry.
  template <class... Operand>
  CF_DEVICE static void copy_columns(Params const& params, Item const& item, uint8_t* to, List<Operand...>) {
    __syncwarp();
    (copy_column(params, item, to, Operand{}), ...);
    __syncwarp();
  }
  template <class Operand>
  CF_DEVICE static void copy_column(Params const& params, Item const& item, uint8_t* to, Operand) {
    using T = typename ElementOf<Operand>::type;
    CfTensor const& tensor = params.operands[ElementOf<Operand>::index];
    int const row = warp_of_group() * 16 + lane_id() % 16;
    reinterpret_cast<T*>(to + vector_offset<Operand>)[row] =
        static_cast<T const*>(tensor.data)[min(item.row() + row, params.m - 1) * tensor.stride];
  }

  CF_DEVICE static void consume(Params const& params, uint8_t* memory, int warpgroup) {
    auto const shared = shared_of(memory, warpgroup);
    uint8_t* const vectors = outer_vectors(memory, warpgroup);
    WeightReader<Factors> weights(weights_in(memory));
    Epilogue<FusedChain> epilogue(params, {shared.ring, vectors, nullptr, nullptr, {}}, 0, warp_of_group());
    RowPosition rows;
#pragma unroll 1
    for (Scheduler tiles = scheduler(params, warpgroup); !tiles.done(); tiles.advance()) {
      if (tiles.idle()) {
        weights.skip_tile();
        continue;
      }
      // Of one tile only: registers that wgmma reads would else stay alive through the program behind.
      typename Factors::Results results;
      ChainMainloop<FusedChain> mainloop(params, weights, epilogue.ring(), memory + kMiddleOffset);
      auto const item = tiles.item();
      wait(shared.rows_full[rows.stage], rows.phase);
      uint8_t* const rows_of_tile = shared.rows_of(rows.stage);
      epilogue.ring().begin_tile(rows_of_tile);
      mainloop.run(
          {item, rows_of_tile, shared.rows_empty + rows.stage, item.row() + warp_of_group() * 16, vectors},
          results, [&] {
            if constexpr (kOuterBuffers > 1) copy_columns(params, item, vectors, ColumnVectors{});
          });
      weights.finish_tile();
      epilogue.run(reinterpret_cast<Accumulator&>(results), item);
      epilogue.ring().release_tile(params, shared.rows_empty + rows.stage);
      rows.advance(params);
    }
    // The others' blocks wait for this warpgroup too.  (Its number anew: no register keeps it till here.)
    if constexpr (Factors::kStreamedBlocks > 0 && !kBatched)
      for (int i = rounds(params, int(threadIdx.x) / kWarpgroup - 1); i < rounds(params, 0); ++i)
        weights.skip_tile();
  }
};

}  // namespace comfuse::sm90
