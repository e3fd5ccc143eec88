// A chain's ring of slots for tile operands, of one warpgroup.  Where a ring holds all that a tile's phases
// read, it is taken as a whole: no wait and no fence lies between the chunks.  It is handed back behind the
// tile's stores.  What was read went into these, so that no read can still be under way, and no fence is
// needed, which would wait for the stores themselves.
//
// Where a tile operand is X itself, it is read from the rows of X that the first GEMM had.  That is known at
// launch only, so a thread finds its part in either in the same way (ThreadRuns).
#pragma once

#include "comfuse/program_parts.hpp"
#include "comfuse/sm90/shared_layout.hpp"
#include "comfuse/sm90/slot_ring.hpp"
#include "comfuse/sm90/thread_runs.hpp"

namespace comfuse::sm90 {

template <class Kernel>
class ChainRing : public SlotRing<Kernel> {
  using Base = SlotRing<Kernel>;
  using Base::position_;
  using Base::shared_;
  using Params = typename Kernel::Params;
  static constexpr int kSlotsPerTile = Kernel::kSlotsPerTile;
  template <class P>
  static constexpr bool kHoldsTile = Kernel::kHoldsTile && P::Tiles::size > 0;

 public:
  using Base::acquire;
  using Base::Base;

  // Of the tile that begins: X's rows.
  CF_DEVICE void begin_tile(uint8_t const* rows) { rows_ = rows; }
  // `row`: the first of the warp's 16 rows.
  template <class P>
  CF_DEVICE void begin(Params const& params, int row) {
    if constexpr (kHoldsTile<P>) acquire_tile(params, row);
  }
  template <class P>
  CF_DEVICE void acquire(HeldSlots<1, P::Tiles::size>& held, int chunk) {
    if constexpr (kHoldsTile<P>)
      locate(held, chunk);
    else
      Base::acquire(held);
  }
  template <class P>
  CF_DEVICE void release_chunk(HeldSlots<1, P::Tiles::size> const& held) {
    if constexpr (!kHoldsTile<P>) Base::template release_chunk<P>(held);
  }
  CF_DEVICE ThreadRuns const* runs() const { return &runs_; }
  // When the warp has stored all of the tile.  `rows_empty`: of the tile's rows.
  CF_DEVICE void release_tile(Params const& params, uint64_t* rows_empty) {
    if constexpr (Kernel::kHoldsTile) {
      __syncwarp();
      if (Kernel::rows_are_operand(params)) {
        if (lane_id() == 0) arrive(*rows_empty);
      } else {
        if (lane_id() < kSlotsPerTile) arrive(shared_.empty[position_.slot + lane_id()]);
        position_.advance(kSlotsPerTile);
      }
    }
  }

 private:
  CF_DEVICE void acquire_tile(Params const& params, int row) {
    static_assert(Kernel::kSlots % kSlotsPerTile == 0);
    bool const from_rows = Kernel::rows_are_operand(params);
    first_slot_ = shared_.slots + position_.slot * Kernel::kSlotBytes;
    if (!from_rows) {
#pragma unroll
      for (int i = 0; i < kSlotsPerTile; ++i) wait(shared_.full[position_.slot + i], position_.phase);
    }
    if constexpr (Kernel::kSharesRows) runs_.locate(from_rows ? rows_ : first_slot_, from_rows, row);
  }
  // The slots of a tile that is held, of its `chunk`-th 32 columns.
  template <int Tiles>
  CF_DEVICE void locate(HeldSlots<1, Tiles>& held, int chunk) const {
#pragma unroll
    for (int t = 0; t < Tiles; ++t)
      held.address[0][t] = first_slot_ + (chunk * Tiles + t) * Kernel::kSlotBytes;
  }

  uint8_t const *rows_ = nullptr, *first_slot_ = nullptr;
  ThreadRuns runs_;
};

}  // namespace comfuse::sm90
