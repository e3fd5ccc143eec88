// The kernel layer: persistent, warp-specialised.  One producer warpgroup, a warp for each kind of
// operand; two consumer warpgroups, which multiply and run the program's phases.
#pragma once

#include <cuda.h>

#include "comfuse/abi.h"
#include "comfuse/sm90/epilogue.hpp"
#include "comfuse/sm90/mainloop.hpp"
#include "comfuse/sm90/scheduler.hpp"

namespace comfuse::sm90 {

template <class GemmT, class ScheduleT, class ClusterT, class StagesT, class SlotsT, class OperandsT, class ProgramT>
struct FusedGemm {
  using Element = typename GemmT::Element;
  using Schedule = ScheduleT;
  using ClusterShape = ClusterT;
  using OperandList = OperandsT;
  using Program = ProgramT;
  using Scheduler = TileScheduler<GemmT::N, Schedule, ClusterShape>;
  using Main = Mainloop<Element, Schedule, ClusterShape, StagesT::value>;
  using Accumulator = typename Main::Accumulator;

  static constexpr int N = GemmT::N;
  static constexpr int TileM = Schedule::TileM, TileN = Schedule::TileN, TileK = Schedule::TileK;
  static constexpr int ClusterN = ClusterShape::ClusterN;
  static constexpr bool kPingpong = Schedule::kPingpong;
  static constexpr int kFragments = Main::kFragments;
  static constexpr bool kClippedN = N % TileN != 0 || Scheduler::kTilesN % ClusterN != 0;
  static_assert(N % 8 == 0 && TileN % 64 == 0 && TileM == 128);

  // ---- threads
  static constexpr int kThreads = 3 * kWarpgroup, kConsumerWarps = 8;
  static constexpr int kConsumersOfTile = kPingpong ? 4 : 8;  // warps
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

  // ---- operands
  static constexpr int kTileOperands = count_of<IsTile>(OperandList{});
  static constexpr int kSlots = kTileOperands > 0 ? SlotsT::value : 0;
  static constexpr int kSlotBytes = 64 * 64 * max_tile_element(OperandList{});
  static constexpr int kRowVectorFloats = count_of<IsRowVector>(OperandList{}) * TileN;
  static constexpr int kColumnVectorFloats = count_of<IsColumnVector>(OperandList{}) * TileM;
  static constexpr bool kVectors = kRowVectorFloats + kColumnVectorFloats > 0;
  template <class V>
  static constexpr int row_vector_offset = index_among<IsRowVector, V>(OperandList{}) * TileN;
  template <class V>
  static constexpr int column_vector_offset = index_among<IsColumnVector, V>(OperandList{}) * TileM;
  template <class... P>
  static constexpr int loads_per_item(List<P...>) {
    return (0 + ... + P::Tiles::size) * (TileM / 64) * (TileN / 64);
  }
  static constexpr int kLoadsPerItem = loads_per_item(Program{});

  // ---- row reductions
  template <class... P>
  static constexpr int reductions(List<P...>) {
    return (0 + ... + count_of<IsRowReduce>(typename P::Effects{}));
  }
  static constexpr int kReductions = reductions(Program{});
  static constexpr bool kExchanges = kReductions > 0 && Scheduler::kTilesN > 1;
  static constexpr int kWordsPerRowBlock = Scheduler::kTilesN * TileM;
  static constexpr int kCounterBytes = 128;

  // ---- shared memory
  static constexpr int kSlotsOffset = Main::kStages * Main::kStageBytes;
  static constexpr int kVectorsOffset = kSlotsOffset + kSlots * kSlotBytes;
  static constexpr int kBarriersOffset = kVectorsOffset + 2 * (kRowVectorFloats + kColumnVectorFloats) * 4;
  static constexpr int kSharedBytes = kBarriersOffset + (2 * Main::kStages + 2 * kSlots + 4) * 8;
  static_assert(kSharedBytes <= 232448, "the plan needs more shared memory than a CTA can have");

  struct Params {
    CUtensorMap a, b, tiles[kTileOperands > 0 ? kTileOperands : 1];
    CfTensor operands[OperandList::size > 0 ? OperandList::size : 1], outputs[CF_MAX_OUTPUTS];
    float scalars[CF_MAX_SCALARS];
    int m, row_blocks, k_blocks;
    uint32_t* parity_counter;
    uint64_t* words;
  };

  CF_DEVICE static void run(Params const& params) {
    extern __shared__ __align__(1024) uint8_t memory[];
    typename Main::Shared main;
    typename Epilogue<FusedGemm>::Shared epilogue;
    auto* barrier = reinterpret_cast<uint64_t*>(memory + kBarriersOffset);
    main.stages = memory;
    main.full = barrier;
    main.empty = main.full + Main::kStages;
    epilogue.slots = memory + kSlotsOffset;
    epilogue.row_vectors = reinterpret_cast<float*>(memory + kVectorsOffset);
    epilogue.column_vectors = epilogue.row_vectors + 2 * kRowVectorFloats;
    epilogue.slot_full = main.empty + Main::kStages;
    epilogue.slot_empty = epilogue.slot_full + kSlots;
    epilogue.vector_full = epilogue.slot_empty + kSlots;
    epilogue.vector_empty = epilogue.vector_full + 2;

    if (threadIdx.x == 0) {
      Main::init(main);
      for (int i = 0; i < kSlots; ++i) {
        Barrier::init(epilogue.slot_full + i, 1);
        Barrier::init(epilogue.slot_empty + i, 4);  // the warps of 64 rows
      }
      for (int i = 0; i < 2; ++i) {
        Barrier::init(epilogue.vector_full + i, 32);
        Barrier::init(epilogue.vector_empty + i, kConsumersOfTile);
      }
      cutlass::arch::fence_barrier_init();
    }
    synchronize();

    Scheduler scheduler(params.row_blocks);
    int const warpgroup = warp_id() / 4;
    if (warpgroup == 0) {
      cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
      int const warp = warp_id();
      if (warp == 0 && lane_id() == 0) produce_gemm(params, main, scheduler);
      if (warp == 1 && lane_id() == 0) produce_tiles(params, epilogue, scheduler, OperandList{});
      if (warp == 2) produce_vectors(params, epilogue, scheduler);
      __syncwarp();
      if constexpr (ClusterN > 1) synchronize();
    } else {
      cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
      consume(params, main, epilogue, scheduler, warpgroup - 1);
      if constexpr (ClusterN > 1) synchronize();
    }
  }

 private:
  CF_DEVICE static void synchronize() {
    if constexpr (ClusterN > 1) {
      cute::cluster_arrive_relaxed();
      cute::cluster_wait();
    } else {
      __syncthreads();
    }
  }

  CF_DEVICE static void produce_gemm(Params const& params, typename Main::Shared const& shared, Scheduler scheduler) {
    typename Main::Position position;
    for (; !scheduler.done(); scheduler.advance()) {
      auto const item = scheduler.item();
      Main::load(shared, position, &params.a, &params.b, item.row(), item.column(), scheduler.rank, params.k_blocks);
    }
    if constexpr (ClusterN > 1) Main::drain(shared, position);
  }

  // Tile operands, in the order in which the consumers' phases read them.
  template <class... Operand>
  CF_DEVICE static void produce_tiles(Params const& params, typename Epilogue<FusedGemm>::Shared const& shared,
                                      Scheduler scheduler, List<Operand...>) {
    if constexpr (kLoadsPerItem > 0) {
      RingPosition<kSlots> position;
      for (; !scheduler.done(); scheduler.advance()) produce_phases(params, shared, scheduler.item(), position, Program{});
    }
  }
  template <class Item, class Position, class... P>
  CF_DEVICE static void produce_phases(Params const& params, typename Epilogue<FusedGemm>::Shared const& shared,
                                       Item const& item, Position& position, List<P...>) {
    (produce_phase(params, shared, item, position, typename P::Tiles{}), ...);
  }
  template <class Item, class Position, class... Leaf>
  CF_DEVICE static void produce_phase(Params const& params, typename Epilogue<FusedGemm>::Shared const& shared,
                                      Item const& item, Position& position, List<Leaf...>) {
    if constexpr (sizeof...(Leaf) > 0)
      for (int chunk = 0; chunk < TileN / 64; ++chunk)
        for (int half = 0; half < TileM / 64; ++half)
          (produce_slot(params, shared, item.row() + half * 64, item.column() + chunk * 64, position, Leaf{}), ...);
  }
  template <class Position, class Leaf>
  CF_DEVICE static void produce_slot(Params const& params, typename Epilogue<FusedGemm>::Shared const& shared, int row,
                                     int column, Position& position, Leaf) {
    constexpr int kBytes = sizeof(typename ElementOf<Leaf>::type), kBoxColumns = 128 / kBytes;
    constexpr uint64_t kHint = uint64_t(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    wait(shared.slot_empty[position.slot], position.phase ^ 1);
    uint64_t* full = shared.slot_full + position.slot;
    Barrier::arrive_and_expect_tx(full, 64 * 64 * kBytes);
    for (int box = 0; box < 64 / kBoxColumns; ++box)
      cute::SM90_TMA_LOAD_2D::copy(&params.tiles[index_among<IsTile, Leaf>(OperandList{})], full, kHint,
                                   shared.slots + position.slot * kSlotBytes + box * 64 * 128,
                                   column + box * kBoxColumns, row);
    position.advance();
  }

  // Vectors, converted to float32; entries beyond the matrix are zero.
  CF_DEVICE static void produce_vectors(Params const& params, typename Epilogue<FusedGemm>::Shared const& shared,
                                        Scheduler scheduler) {
    if constexpr (kVectors) {
      for (uint32_t sequence = 0; !scheduler.done(); scheduler.advance(), ++sequence) {
        auto const item = scheduler.item();
        wait(shared.vector_empty[sequence % 2], sequence / 2 % 2 ^ 1);
        float* rows = shared.row_vectors + sequence % 2 * kRowVectorFloats;
        float* columns = shared.column_vectors + sequence % 2 * kColumnVectorFloats;
        copy_vectors(params, item, rows, columns, OperandList{});
        arrive(shared.vector_full[sequence % 2]);
      }
    }
  }
  template <class Item, class... Operand>
  CF_DEVICE static void copy_vectors(Params const& params, Item const& item, float* rows, float* columns,
                                     List<Operand...>) {
    (copy_vector(params, item, rows, columns, Operand{}), ...);
  }
  template <class Item, class Operand>
  CF_DEVICE static void copy_vector(Params const& params, Item const& item, float* rows, float* columns, Operand) {
    if constexpr (IsRowVector<Operand>::value)
      copy_entries<Operand>(params, rows + row_vector_offset<Operand>, item.column(), N, TileN);
    if constexpr (IsColumnVector<Operand>::value)
      copy_entries<Operand>(params, columns + column_vector_offset<Operand>, item.row(), params.m, TileM);
  }
  template <class Operand>
  CF_DEVICE static void copy_entries(Params const& params, float* to, int first, int end, int count) {
    using T = typename ElementOf<Operand>::type;
    CfTensor const& from = params.operands[ElementOf<Operand>::index];
#pragma unroll 4
    for (int i = lane_id(); i < count; i += 32)
      to[i] = first + i < end ? to_float(static_cast<T const*>(from.data)[(first + i) * from.stride]) : 0.f;
  }

  CF_DEVICE static void consume(Params const& params, typename Main::Shared const& main,
                                typename Epilogue<FusedGemm>::Shared const& shared, Scheduler scheduler, int warpgroup) {
    Epilogue<FusedGemm> epilogue(params, shared, warpgroup);
    typename Main::Position position;
    Accumulator accumulator;
    if constexpr (kPingpong) {
      // Named barrier 1 + w gives warpgroup w its turn to multiply.  Each skips what the other consumes.
      if (warpgroup == 1) {
        named_arrive(1);
        position.advance(params.k_blocks);
        epilogue.skip_item();
        scheduler.advance();
      }
      for (; !scheduler.done(); scheduler.advance(2)) {
        named_sync(1 + warpgroup);
        Main::multiply(main, position, accumulator, warpgroup, params.k_blocks);
        named_arrive(2 - warpgroup);
        Main::finish(main, position, accumulator);
        epilogue.run(accumulator, scheduler.item());
        position.advance(params.k_blocks);
        epilogue.skip_item();
      }
    } else {
      for (; !scheduler.done(); scheduler.advance()) {
        Main::multiply(main, position, accumulator, warpgroup, params.k_blocks);
        Main::finish(main, position, accumulator);
        epilogue.run(accumulator, scheduler.item());
      }
    }
    epilogue.leave();
  }
  CF_DEVICE static void named_sync(uint32_t id) {
    asm volatile("bar.sync %0, 256;" ::"r"(id) : "memory");
  }
  CF_DEVICE static void named_arrive(uint32_t id) {
    asm volatile("bar.arrive %0, 256;" ::"r"(id) : "memory");
  }
};

}  // namespace comfuse::sm90
