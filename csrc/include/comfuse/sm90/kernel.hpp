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
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

  // ---- operands
  static constexpr int kTileOperands = count_of<IsTile>(OperandList{});
  static constexpr int kSlots = kTileOperands > 0 ? SlotsT::value : 0;
  static constexpr int kSlotBytes = 64 * 64 * max_tile_element(OperandList{});
  static constexpr int kVectorBytes = vector_bytes<void, TileM, TileN>(OperandList{});
  template <class V>
  static constexpr int vector_offset = vector_bytes<V, TileM, TileN>(OperandList{});

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
  // Each consumer warpgroup has a ring of slots of its own, for its own rows: its waits then see every
  // lap of their barriers, which a parity bit needs.  Vectors belong to a tile: in pingpong each
  // warpgroup has a buffer, in the cooperative schedule both read one.
  static constexpr int kVectorBuffers = kPingpong ? 2 : 1;
  static constexpr int kVectorsOffset = kSlotsOffset + 2 * kSlots * kSlotBytes;
  static constexpr int kBarriersOffset = kVectorsOffset + kVectorBuffers * kVectorBytes;
  static constexpr int kSharedBytes = kBarriersOffset + (2 * Main::kStages + 4 * kSlots + 2 * kVectorBuffers) * 8;
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
    auto* barriers = reinterpret_cast<uint64_t*>(memory + kBarriersOffset);
    typename Main::Shared const main{memory, barriers, barriers + Main::kStages};
    if (threadIdx.x == 0) {
      Main::init(main);
      for (int w = 0; w < 2; ++w) {
        auto const shared = epilogue_memory(memory, w);
        for (int i = 0; i < kSlots; ++i) {
          Barrier::init(shared.slot_full + i, 1);
          Barrier::init(shared.slot_empty + i, 4);
        }
        Barrier::init(shared.vector_full, 32);
        Barrier::init(shared.vector_empty, kConsumerWarps / kVectorBuffers);
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
      if (warp == 1 && lane_id() == 0) produce_tiles(params, memory, scheduler);
      if (warp == 2) produce_vectors(params, memory, scheduler);
      __syncwarp();
      if constexpr (ClusterN > 1) synchronize();
    } else {
      cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
      consume(params, main, epilogue_memory(memory, warpgroup - 1), scheduler, warpgroup - 1);
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

  // Warpgroup `w`'s part: slots and vectors, then behind the GEMM's barriers its own.
  using EpilogueShared = typename Epilogue<FusedGemm>::Shared;
  CF_DEVICE static EpilogueShared epilogue_memory(uint8_t* memory, int w) {
    auto* slot_barriers = reinterpret_cast<uint64_t*>(memory + kBarriersOffset) + 2 * Main::kStages;
    auto* vector_barriers = slot_barriers + 4 * kSlots;
    int const buffer = kVectorBuffers == 2 ? w : 0;
    return {memory + kSlotsOffset + w * kSlots * kSlotBytes,
            memory + kVectorsOffset + buffer * kVectorBytes,
            slot_barriers + 2 * w * kSlots,
            slot_barriers + (2 * w + 1) * kSlots,
            vector_barriers + 2 * buffer,
            vector_barriers + 2 * buffer + 1};
  }

  CF_DEVICE static void produce_gemm(Params const& params, typename Main::Shared const& shared, Scheduler scheduler) {
    typename Main::Position position;
    for (; !scheduler.done(); scheduler.advance()) {
      auto const item = scheduler.item();
      Main::load(shared, position, &params.a, &params.b, item.row(), item.column(), scheduler.rank, params.k_blocks);
    }
    if constexpr (ClusterN > 1) Main::drain(shared, position);
  }

  // Tile operands, each warpgroup's in the order in which its phases read them.
  CF_DEVICE static void produce_tiles(Params const& params, uint8_t* memory, Scheduler scheduler) {
    if constexpr (kSlots > 0) {
      RingPosition<kSlots> mine, other;
      for (int w = 0; !scheduler.done(); scheduler.advance()) {
        produce_phases(params, memory, scheduler.item(), w, mine, other, Program{});
        if constexpr (kPingpong) {
          auto const swapped = mine;
          mine = other, other = swapped, w ^= 1;
        }
      }
    }
  }
  template <class Item, class Position, class... P>
  CF_DEVICE static void produce_phases(Params const& params, uint8_t* memory, Item const& item, int w, Position& mine,
                                       Position& other, List<P...>) {
    (produce_phase(params, memory, item, w, mine, other, typename P::Tiles{}), ...);
  }
  // Pingpong: all 64-row halves go to warpgroup w.  Cooperative: each to its own.
  template <class Item, class Position, class... Leaf>
  CF_DEVICE static void produce_phase(Params const& params, uint8_t* memory, Item const& item, int w, Position& mine,
                                      Position& other, List<Leaf...>) {
    if constexpr (sizeof...(Leaf) > 0)
      for (int chunk = 0; chunk < TileN / 64; ++chunk) {
        int const row = item.row(), column = item.column() + chunk * 64;
        (produce_slot(params, epilogue_memory(memory, w), row, column, mine, Leaf{}), ...);
        (produce_slot(params, epilogue_memory(memory, kPingpong ? w : 1), row + 64, column, kPingpong ? mine : other,
                      Leaf{}),
         ...);
      }
  }
  template <class Position, class Leaf>
  CF_DEVICE static void produce_slot(Params const& params, EpilogueShared const& shared, int row, int column,
                                     Position& position, Leaf) {
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

  // The tile's part of every vector, as it is in memory; entries beyond the matrix are zero.
  CF_DEVICE static void produce_vectors(Params const& params, uint8_t* memory, Scheduler scheduler) {
    if constexpr (kVectorBytes > 0) {
      for (uint32_t sequence = 0; !scheduler.done(); scheduler.advance(), ++sequence) {
        auto const shared = epilogue_memory(memory, sequence % kVectorBuffers);
        wait(*shared.vector_empty, sequence / kVectorBuffers % 2 ^ 1);
        copy_vectors(params, scheduler.item(), shared.vectors, OperandList{});
        arrive(*shared.vector_full);
      }
    }
  }
  template <class Item, class... Operand>
  CF_DEVICE static void copy_vectors(Params const& params, Item const& item, uint8_t* to, List<Operand...>) {
    (copy_vector(params, item, to, Operand{}), ...);
  }
  template <class Item, class Operand>
  CF_DEVICE static void copy_vector(Params const& params, Item const& item, uint8_t* to, Operand) {
    if constexpr (IsRowVector<Operand>::value)
      copy_entries<Operand>(params, to + vector_offset<Operand>, item.column(), N, TileN);
    if constexpr (IsColumnVector<Operand>::value)
      copy_entries<Operand>(params, to + vector_offset<Operand>, item.row(), params.m, TileM);
  }
  template <class Operand>
  CF_DEVICE static void copy_entries(Params const& params, uint8_t* to, int first, int end, int count) {
    using T = typename ElementOf<Operand>::type;
    CfTensor const& from = params.operands[ElementOf<Operand>::index];
#pragma unroll 4
    for (int i = lane_id(); i < count; i += 32)
      reinterpret_cast<T*>(to)[i] =
          first + i < end ? static_cast<T const*>(from.data)[(first + i) * from.stride] : from_float<T>(0.f);
  }

  CF_DEVICE static void consume(Params const& params, typename Main::Shared const& main, EpilogueShared const& shared,
                                Scheduler scheduler, int warpgroup) {
    Epilogue<FusedGemm> epilogue(params, shared, warpgroup);
    typename Main::Position position;
    Accumulator accumulator;
    if constexpr (kPingpong) {
      // Named barrier 1 + w gives warpgroup w its turn to multiply.  Each skips the K blocks of the other.
      if (warpgroup == 1) {
        named_arrive(1);
        position.advance(params.k_blocks);
        scheduler.advance();
      }
      for (; !scheduler.done(); scheduler.advance(2)) {
        named_sync(1 + warpgroup);
        Main::multiply(main, position, accumulator, warpgroup, params.k_blocks);
        named_arrive(2 - warpgroup);
        Main::finish(main, position, accumulator);
        epilogue.run(accumulator, scheduler.item());
        position.advance(params.k_blocks);
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
