// The consumers' side of tile operands, which TMA brings in pieces of 64 rows by 32 columns, one a slot.
//
// The teams share a ring, so each waits for its items' slots only after the team before has seen its own
// filled: a parity bit tells two laps apart, not three.
#pragma once

#include "comfuse/program_parts.hpp"
#include "comfuse/sm90/instructions.hpp"

namespace comfuse::sm90 {

class ThreadRuns;

// Whether all that a phase reads of 32 columns goes into what it stores of them.
template <class EffectsT>
constexpr bool kStoresAll = false;
template <class... E>
constexpr bool kStoresAll<List<E...>> = (true && ... && (IsTileStore<E>::value || IsStridedStore<E>::value));

// The slots of one chunk of columns, as a phase with `Tiles` tile operands holds them.
template <int Fragments, int Tiles>
struct HeldSlots {
  uint32_t index[Fragments][Tiles + 1];
  uint8_t const* address[Fragments][Tiles + 1];
};

template <class Kernel>
class SlotRing {
  static constexpr int kFragments = Kernel::kFragments;

 public:
  struct Shared {
    uint8_t* slots;
    uint64_t *full, *empty;
  };
  // The turn to read slots, where teams share a ring.
  static constexpr bool kOrdered = Kernel::kTeams > 1 && Kernel::kSlotsPerItem > 0;
  using Turn = Turns<Kernel::kTeams, Kernel::kTeamSize * kWarpgroup, 1>;

  CF_DEVICE explicit SlotRing(Shared const& shared) : shared_(shared) {}

  // Passes over items of the other teams.
  CF_DEVICE void skip_items(int count) {
    if constexpr (kOrdered) position_.advance(count * Kernel::kSlotsPerItem);
  }

  template <int Tiles>
  CF_DEVICE void acquire(HeldSlots<kFragments, Tiles>& held) {
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
#pragma unroll
      for (int t = 0; t < Tiles; ++t, position_.advance()) {
        wait(shared_.full[position_.slot], position_.phase);
        held.index[i][t] = position_.slot;
        held.address[i][t] = shared_.slots + position_.slot * Kernel::kSlotBytes;
      }
    }
  }
  // `StoredAll`: behind stores that all that was read went into.
  template <bool StoredAll = false, int Tiles>
  CF_DEVICE void release(HeldSlots<kFragments, Tiles> const& held) {
    if constexpr (Tiles > 0) {
      // TMA will overwrite what this warp has read.  Reads may still be under way unless something has used
      // what they brought, or a fence has waited for them; it waits for stores too, which take longer.
      if constexpr (!StoredAll) fence_async_shared();
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kFragments; ++i) {
#pragma unroll
        for (int t = 0; t < Tiles; ++t)
          if (lane_id() == 0) arrive(shared_.empty[held.index[i][t]]);
      }
    }
  }

  // ---- a phase of the epilogue, chunk by chunk
  template <class P>
  CF_DEVICE void begin(typename Kernel::Params const&, int /*row*/) {}
  template <class P>
  CF_DEVICE void acquire(HeldSlots<kFragments, P::Tiles::size>& held, int /*chunk*/) {
    acquire(held);
  }
  template <class P>
  CF_DEVICE void release_chunk(HeldSlots<kFragments, P::Tiles::size> const& held) {
    release<kStoresAll<typename P::Effects>>(held);
  }
  CF_DEVICE static ThreadRuns const* runs() { return nullptr; }  // of a tile operand that may be A itself

 protected:
  Shared shared_;
  RingPosition<(Kernel::kSlots > 0 ? Kernel::kSlots : 1)> position_;
};

}  // namespace comfuse::sm90
