// The kernel layer: persistent, warp-specialised.  One producer warpgroup, a warp for each kind of operand
// and one that collects column and full reductions; one or two teams of consumer warpgroups, which multiply
// and run the program's phases.
#pragma once

#include "comfuse/abi.h"
#include "comfuse/sm90/batches.hpp"
#include "comfuse/sm90/collector.hpp"
#include "comfuse/sm90/epilogue.hpp"
#include "comfuse/sm90/mainloop.hpp"
#include "comfuse/sm90/reductions.hpp"
#include "comfuse/sm90/scheduler.hpp"

namespace comfuse::sm90 {

template <class GemmT, class ScheduleT, class ClusterT, class StagesT, class SlotsT, class OperandsT,
          class ProgramT>
struct FusedGemm {
  using Element = typename GemmT::Element;
  using Schedule = ScheduleT;
  using ClusterShape = ClusterT;
  using OperandList = OperandsT;
  using Program = ProgramT;
  using Phases = PhasesOf<Program>;
  using Scheduler = TileScheduler<GemmT, Schedule, ClusterShape, (FedBackOf<Program>::size > 0)>;
  using Item = typename Scheduler::Item;
  using Main = Mainloop<GemmT, Schedule, ClusterShape, StagesT>;
  using Accumulator = typename Main::Accumulator;

  static constexpr int N = GemmT::N, kProducts = GemmT::kProducts, kFactorsB = kProducts;
  static constexpr bool kOwnA = GemmT::kOwnA;  // of the second product
  static constexpr bool kBatched = GemmT::kBatched;
  static constexpr int TileM = Schedule::TileM, TileN = Schedule::TileN, TileK = Schedule::TileK;
  static constexpr bool kClustered = ClusterShape::kSize > 1;
  static constexpr int kTeams = Schedule::kTeams, kTeamSize = Schedule::kTeamSize,
                       kConsumers = kTeams * kTeamSize;
  static constexpr int kFragments = Main::kFragments;
  static constexpr bool kClippedN = N % TileN != 0 || Scheduler::kTilesN % ClusterShape::ClusterN != 0;
  static_assert(N > 0 && TileN % 32 == 0 && TileM == 128);
  // Where B is not permuted, threads keep the pairs of columns that wgmma deals them, or trade for runs of
  // eight.
  static constexpr bool kPairs =
      !Main::kPermutedB && !kClippedN && all_in_pairs<Program>(OperandList{}, AllEffectsOf<Program>{});
  static constexpr bool kTraded = !Main::kPermutedB && !kPairs;

  // ---- threads
  static constexpr int kThreads = (1 + kConsumers) * kWarpgroup, kConsumerWarps = 4 * kConsumers;
  static constexpr int kConsumersBarrier = 1 + 2 * kTeams;  // of all consumers, behind those of Turns
  // The registers that a CTA starts with, 168 or 96 a thread, dealt out anew.
  static_assert(kConsumers == 2 || kConsumers == 4);
  static constexpr int kProducerRegisters = kConsumers == 2 ? 40 : 32,
                       kConsumerRegisters = kConsumers == 2 ? 232 : 112;

  // ---- operands
  static constexpr int kTileOperands = count_of<IsTile>(OperandList{});
  static constexpr int kSlots = kTileOperands > 0 ? SlotsT::value : 0;
  static constexpr int kSlotBytes = 64 * 32 * max_tile_element(OperandList{});
  template <class... P>
  static constexpr int slots_per_item(List<P...>) {  // of one member's ring
    return (0 + ... + P::Tiles::size) * kFragments * (TileN / 32);
  }
  using Ring = SlotRing<FusedGemm>;
  template <class>
  static constexpr bool kMayBeRows = false;  // a tile operand that is A itself
  static constexpr int kSlotsPerItem = slots_per_item(PhasesOf<Program>{});
  template <class... P>
  static constexpr int most_tiles(List<P...>) {
    int most = 0;
    ((most = P::Tiles::size > most ? P::Tiles::size : most), ...);
    return most;
  }
  static_assert(kSlots >= kFragments * most_tiles(PhasesOf<Program>{}),
                "a phase holds a slot for each operand and fragment");
  static_assert(OperandList::size <= CF_MAX_OPERANDS);
  static constexpr int kVectorBytes = vector_bytes<void, TileM, TileN>(OperandList{});
  template <class Operand>
  static constexpr int kColumnsOf = N;
  template <class V>
  static constexpr int vector_offset = vector_offset_among<V, TileM, TileN>(OperandList{});

  // ---- shared memory
  using Collected = CollectorMemory<FusedGemm>;
  static constexpr int kSlotsOffset = Main::kStages * Main::kStageBytes;
  // A team's members each have a ring of tile slots, for their own rows; both teams use it, in the order
  // of the items.  A team has a buffer for its tile's vectors.
  static_assert(!kPairs || (kSlotsOffset % kSwizzleBytes == 0 && kSlotBytes % kSwizzleBytes == 0));
  static constexpr int kVectorsOffset = kSlotsOffset + kTeamSize * kSlots * kSlotBytes;
  static constexpr int kColumnsOffset = kVectorsOffset + kTeams * kVectorBytes;
  static constexpr int kCollectedOffset = kColumnsOffset + ColumnMemory<FusedGemm>::kBytes;
  using InCluster = ClusterGroup<FusedGemm>;
  static constexpr int kGroupOffset = kCollectedOffset + Collected::kBytes;
  static_assert(!InCluster::kIsUsed || kGroupOffset % 8 == 0);
  static constexpr int kBarriersOffset = kGroupOffset + InCluster::kBytes;
  static constexpr int kBarriers =
      2 * Main::kStages + 2 * kTeamSize * kSlots + 2 * kTeams + Collected::kBarriers + InCluster::kBarriers;
  static constexpr int kSharedBytes = kBarriersOffset + kBarriers * 8;
  static_assert(kSharedBytes <= 232448, "the plan needs more shared memory than a CTA can have");

  // ---- outputs
  static constexpr int kOutputs = output_count(StoresOf<Program>{});
  static_assert(kOutputs <= CF_MAX_OUTPUTS);

  struct Params {
    typename Main::Maps gemm;
    CUtensorMap tiles[kTileOperands > 0 ? kTileOperands : 1];
    BatchSteps<int> tile_batches[kTileOperands > 0 ? kTileOperands : 1];  // as in Main::Maps
    CfTensor operands[OperandList::size > 0 ? OperandList::size : 1], outputs[kOutputs > 0 ? kOutputs : 1];
    BatchSteps<int64_t> operand_batches[kBatched && OperandList::size > 0 ? OperandList::size : 1];
    float scalars[CF_MAX_SCALARS];
    int m;                    // rows of a batch
    int row_blocks;           // of all batches
    Divisor blocks_of_batch;  // row blocks
    typename Main::Blocks k_blocks;
    Workspace workspace;
  };

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

  CF_DEVICE static void run(Params const& params) {
    extern __shared__ __align__(1024) uint8_t memory[];
    auto* barriers = reinterpret_cast<uint64_t*>(memory + kBarriersOffset);
    typename Main::Shared const main{memory, barriers, barriers + Main::kStages};
    if (threadIdx.x == 0) {
      Main::init(main);
      for (int member = 0; member < kTeamSize; ++member)
        for (int i = 0; i < kSlots; ++i) {
          auto const shared = epilogue_memory(memory, 0, member);
          Barrier::init(shared.ring.full + i, 1);
          Barrier::init(shared.ring.empty + i, 4);
        }
      for (int team = 0; team < kTeams; ++team) {
        auto const shared = epilogue_memory(memory, team, 0);
        Barrier::init(shared.vector_full, 32);
        Barrier::init(shared.vector_empty, 4 * kTeamSize);
        shared.group.init();
      }
      epilogue_memory(memory, 0, 0).collected.init();
      fence_barrier_init();
    }
    synchronize();

    Scheduler scheduler(params.row_blocks, params.blocks_of_batch);
    int const warpgroup = warp_id() / 4;
    if (warpgroup == 0) {
      cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
      int const warp = warp_id();
      if (warp == 0 && lane_id() == 0) produce_gemm(params, main, scheduler);
      if (warp == 1 && lane_id() == 0) produce_tiles(params, memory, scheduler);
      if (warp == 2) produce_vectors(params, memory, scheduler);
      if constexpr (Collected::kIsUsed)
        if (warp == 3) Collector<FusedGemm>::run(params, epilogue_memory(memory, 0, 0).collected, scheduler);
      __syncwarp();
      if constexpr (kClustered) synchronize();
    } else {
      cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
      consume(params, main, memory, scheduler, (warpgroup - 1) / kTeamSize, (warpgroup - 1) % kTeamSize);
      if constexpr (kClustered) synchronize();
    }
  }

 private:
  CF_DEVICE static void synchronize() {
    if constexpr (kClustered) {
      arrive_at_cluster();
      wait_for_cluster();
    } else {
      __syncthreads();
    }
  }

  // What a member of a team shares with the producers: its ring, its team's vectors, their barriers.
  using EpilogueShared = typename Epilogue<FusedGemm>::Shared;
  CF_DEVICE static EpilogueShared epilogue_memory(uint8_t* memory, int team, int member) {
    auto* slot_barriers = reinterpret_cast<uint64_t*>(memory + kBarriersOffset) + 2 * Main::kStages;
    auto* vector_barriers = slot_barriers + 2 * kTeamSize * kSlots;
    return {
        {memory + kSlotsOffset + member * kSlots * kSlotBytes, slot_barriers + 2 * member * kSlots,
         slot_barriers + (2 * member + 1) * kSlots},
        memory + kVectorsOffset + team * kVectorBytes,
        vector_barriers + 2 * team,
        vector_barriers + 2 * team + 1,
        {memory + kColumnsOffset},
        {memory + kCollectedOffset, vector_barriers + 2 * kTeams},
        InCluster::of_team(memory + kGroupOffset, vector_barriers + 2 * kTeams + Collected::kBarriers, team)};
  }

  CF_DEVICE static void produce_gemm(Params const& params, typename Main::Shared const& shared,
                                     Scheduler scheduler) {
    typename Main::Position position;
    for (; !scheduler.done(); scheduler.advance()) {
      auto const item = scheduler.item();
      Main::load(shared, position, params.gemm, item.batch, item.row(), item.column(), scheduler.rank,
                 params.k_blocks);
    }
    if constexpr (kClustered) Main::drain(shared, position);
  }

  // Tile operands, in the order in which the consumers' phases read them.
  CF_DEVICE static void produce_tiles(Params const& params, uint8_t* memory, Scheduler scheduler) {
    if constexpr (kSlots > 0) {
      Rings rings;
      for (; !scheduler.done(); scheduler.advance())
        produce_phases(params, memory, scheduler.item(), rings, PhasesOf<Program>{});
    }
  }
  struct Rings {
    RingPosition<(kSlots > 0 ? kSlots : 1)> members[kTeamSize];
  };
  template <class... P>
  CF_DEVICE static void produce_phases(Params const& params, uint8_t* memory, Item const& item, Rings& rings,
                                       List<P...>) {
    (produce_phase(params, memory, item, rings, typename P::Tiles{}), ...);
  }
  template <class... Leaf>
  CF_DEVICE static void produce_phase(Params const& params, uint8_t* memory, Item const& item, Rings& rings,
                                      List<Leaf...>) {
    if constexpr (sizeof...(Leaf) > 0) {
      int const matrices[] = {matrix_of(params, item, Leaf{})...};
      for (int column = item.column(); column < item.column() + TileN; column += 32) {
#pragma unroll
        for (int part = 0; part < TileM / 64; ++part) {
          int const member = part / kFragments;  // a constant once unrolled: rings stay in registers
          int leaf = 0;
          (produce_slot(params, epilogue_memory(memory, 0, member), item.row() + part * 64, column,
                        matrices[leaf++], rings.members[member], Leaf{}),
           ...);
        }
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
  CF_DEVICE static void produce_slot(Params const& params, EpilogueShared const& shared, int row, int column,
                                     int matrix, Position& position, Leaf) {
    constexpr int kMap = index_among<IsTile, Leaf>(OperandList{});
    constexpr CacheHint kHint = CacheHint::kNormal;
    wait(shared.ring.empty[position.slot], position.phase ^ 1);
    uint64_t* full = shared.ring.full + position.slot;
    Barrier::arrive_and_expect_tx(full, 64 * 32 * sizeof(typename ElementOf<Leaf>::type));
    uint8_t* slot = shared.ring.slots + position.slot * kSlotBytes;
    if constexpr (kBatched)
      tma_load(params.tiles[kMap], full, kHint, slot, column, row, matrix);
    else
      tma_load(params.tiles[kMap], full, kHint, slot, column, row);
    position.advance();
  }

  // The tile's part of every vector, as it is in memory; entries beyond the matrix are zero.
  CF_DEVICE static void produce_vectors(Params const& params, uint8_t* memory, Scheduler scheduler) {
    if constexpr (kVectorBytes > 0) {
      for (uint32_t sequence = 0; !scheduler.done(); scheduler.advance(), ++sequence) {
        auto const shared = epilogue_memory(memory, sequence % kTeams, 0);
        wait(*shared.vector_empty, sequence / kTeams % 2 ^ 1);
        copy_vectors(params, scheduler.item(), shared.vectors, OperandList{});
        arrive(*shared.vector_full);
      }
    }
  }
  template <class... Operand>
  CF_DEVICE static void copy_vectors(Params const& params, Item const& item, uint8_t* to, List<Operand...>) {
    (copy_vector(params, item, to, Operand{}), ...);
  }
  template <class Operand>
  CF_DEVICE static void copy_vector(Params const& params, Item const& item, uint8_t* to, Operand) {
    if constexpr (IsRowVector<Operand>::value)
      copy_entries<Operand>(params, item, to + vector_offset<Operand>, item.column(), N, TileN);
    if constexpr (IsColumnVector<Operand>::value)
      copy_entries<Operand>(params, item, to + vector_offset<Operand>, item.row(), params.m, TileM);
  }
  template <class Operand>
  CF_DEVICE static void copy_entries(Params const& params, Item const& item, uint8_t* to, int first, int end,
                                     int count) {
    using T = typename ElementOf<Operand>::type;
    CfTensor const& tensor = params.operands[ElementOf<Operand>::index];
    T const* const from =
        static_cast<T const*>(tensor.data) + batch_of_operand(params, ElementOf<Operand>::index, item);
#pragma unroll 4
    for (int i = lane_id(); i < count; i += 32)
      reinterpret_cast<T*>(to)[i] = first + i < end ? from[(first + i) * tensor.stride] : from_float<T>(0.f);
  }

  CF_DEVICE static void consume(Params const& params, typename Main::Shared const& main, uint8_t* memory,
                                Scheduler scheduler, int team, int member) {
    Epilogue<FusedGemm> epilogue(params, epilogue_memory(memory, team, member), team,
                                 4 * member + warp_id() % 4);
    typename Main::Position position;
    Accumulator accumulator;
    Timeline& timeline = epilogue.timeline();
    if constexpr (kTeams == 1) {
      for (; !scheduler.done(); scheduler.advance()) {
        timeline.begin();
        timeline.mark();
        Main::multiply(main, position, accumulator, member, params.k_blocks);
        timeline.mark();
        Main::template finish<kTraded>(main, position, accumulator);
        timeline.mark();
        epilogue.run(accumulator, scheduler.item());
      }
    } else {
      // The teams take turns to multiply.  Each skips the K blocks and the tile slots of the others.
      using Turn = Turns<kTeams, kTeamSize * kWarpgroup, 0>;
      if (team == kTeams - 1) Turn::pass(team);
      position.advance(Main::count(params.k_blocks) * team);
      epilogue.skip_items(team);
      scheduler.advance(team);
      for (; !scheduler.done(); scheduler.advance(kTeams)) {
        timeline.begin();
        Turn::await(team);
        timeline.mark();
        Main::multiply(main, position, accumulator, member, params.k_blocks);
        timeline.mark();
        Turn::pass(team);
        Main::template finish<kTraded>(main, position, accumulator);
        timeline.mark();
        epilogue.run(accumulator, scheduler.item());
        position.advance(Main::count(params.k_blocks) * (kTeams - 1));
        epilogue.skip_items(kTeams - 1);
      }
    }
    epilogue.leave();
  }
};

}  // namespace comfuse::sm90
