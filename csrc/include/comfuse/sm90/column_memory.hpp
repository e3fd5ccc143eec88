// The shared memory of column reductions that phases read: each warp's partial States of the tile's columns.
// Those of warp 0 give way to the finished ones, which the later phases read (column_group.hpp).
#pragma once

#include "comfuse/sm90/reductions.hpp"
#include "comfuse/sm90/state_run.hpp"

namespace comfuse::sm90 {

template <class Kernel>
struct ColumnMemory {
  using Reductions = ExchangedColumnsOf<typename Kernel::Program>;
  static constexpr int kWarps = Kernel::kConsumerWarps, TileN = Kernel::TileN;

  // By reduction, warp and column.
  template <class E, class... X>
  static constexpr int bytes_before(List<X...>) {
    int bytes = 0;
    bool found = false;
    ((found = found || std::is_same<E, X>::value,
      bytes += found ? 0 : kWarps * TileN * int(sizeof(StateOf<X>))),
     ...);
    return bytes;
  }
  static constexpr int kBytes = bytes_before<void>(Reductions{});

  uint8_t* memory;

  template <class E>
  CF_DEVICE StateOf<E>* states(int warp) const {
    return reinterpret_cast<StateOf<E>*>(memory + bytes_before<E>(Reductions{})) + warp * TileN;
  }
  // One field of the finished States of eight neighbouring columns.
  template <int R, Field F>
  CF_DEVICE void read(float (&run)[8], int column, float inverse_count) const {
    using E = ReductionWithIndex<R, Reductions>;
    constexpr int kRun = 16 / sizeof(StateOf<E>);
#pragma unroll
    for (int c = 0; c < 8; c += kRun) {
      auto const loaded = StateRun<StateOf<E>, kRun>::load(states<E>(0) + column + c);
#pragma unroll
      for (int i = 0; i < kRun; ++i) run[c + i] = loaded.states[i].template get<F>(inverse_count);
    }
  }
};

}  // namespace comfuse::sm90
