// The shared memory between a CTA's consumers and its collector (collector.hpp).
//
// Each warp of a team leaves its partial States of the tile's columns, and of all of the tile, in the team's
// buffers; the collector merges and frees them.
#pragma once

#include "comfuse/sm90/reductions.hpp"

namespace comfuse::sm90 {

template <class Kernel>
struct CollectorMemory {
  using ColReductions = CollectedColumnsOf<typename Kernel::Program>;
  using FullReductions = FullReductionsOf<typename Kernel::Program>;
  static constexpr int kTeams = Kernel::kTeams, kWarps = 4 * Kernel::kTeamSize, TileN = Kernel::TileN;
  static constexpr bool kIsUsed = ColReductions::size + FullReductions::size > 0;

  // ---- layout: column partials by reduction, team, warp and column; full ones by reduction, team and warp,
  // 8 bytes each; a bit for each column block, and one for the whole, that this CTA was the last to add to
  template <class... E>
  static constexpr int column_bytes(List<E...>) {
    return (0 + ... + (kTeams * kWarps * TileN * int(sizeof(StateOf<E>))));
  }
  template <class E, class... X>
  static constexpr int column_bytes_before(List<X...>) {
    int bytes = 0;
    bool found = false;
    ((found = found || std::is_same<E, X>::value, bytes += found ? 0 : column_bytes(List<X>{})), ...);
    return bytes;
  }
  static constexpr int kFullOffset = column_bytes(ColReductions{});
  static constexpr int kFinishedOffset = kFullOffset + FullReductions::size * kTeams * kWarps * 8;
  static constexpr int kFinishedWords = (Kernel::Scheduler::kTilesN + 1 + 63) / 64 * 2;
  static constexpr int kBytes = kIsUsed ? kFinishedOffset + kFinishedWords * 4 : 0;
  static constexpr int kBarriers = kIsUsed ? 2 * kTeams + 1 : 0;

  uint8_t* memory;
  uint64_t* barriers;  // each team's full, each team's empty, done

  template <class E>
  CF_DEVICE StateOf<E>* columns(int team, int warp) const {
    return reinterpret_cast<StateOf<E>*>(memory + column_bytes_before<E>(ColReductions{})) +
           (team * kWarps + warp) * TileN;
  }
  template <class E>
  CF_DEVICE StateOf<E>& full(int team, int warp) const {
    constexpr int kReduction = position_in<E, FullReductions>;
    return *reinterpret_cast<StateOf<E>*>(memory + kFullOffset +
                                          ((kReduction * kTeams + team) * kWarps + warp) * 8);
  }
  CF_DEVICE uint32_t* finished() const { return reinterpret_cast<uint32_t*>(memory + kFinishedOffset); }
  CF_DEVICE uint64_t& filled(int team) const { return barriers[team]; }
  CF_DEVICE uint64_t& emptied(int team) const { return barriers[kTeams + team]; }
  CF_DEVICE uint64_t& done() const { return barriers[2 * kTeams]; }

  // Every lane arrives for what it wrote or read itself.
  CF_DEVICE void init() const {
    for (int team = 0; kIsUsed && team < kTeams; ++team) {
      Barrier::init(&filled(team), kWarps * 32);
      Barrier::init(&emptied(team), 32);
    }
    if (kIsUsed) Barrier::init(&done(), 32);
  }
};

}  // namespace comfuse::sm90
