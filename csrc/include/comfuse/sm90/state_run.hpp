// States of neighbours in memory.
#pragma once

#include "comfuse/sm90/instructions.hpp"

namespace comfuse::sm90 {

// The States of `Count` neighbours, moved together.
template <class State, int Count>
struct StateRun {
  State states[Count];

  CF_DEVICE static StateRun load(State const* p) { return of(*reinterpret_cast<Words const*>(p)); }
  // What a thread of any CTA has written: from L2.
  CF_DEVICE static StateRun load_from_others(State const* p) {
    return of(__ldcg(reinterpret_cast<Words const*>(p)));
  }
  CF_DEVICE void store(State* p) const {
    Words words;
    memcpy(&words, states, sizeof(words));
    *reinterpret_cast<Words*>(p) = words;
  }

 private:
  using Words = std::conditional_t<sizeof(State) * Count == 4, uint32_t,
                                   std::conditional_t<sizeof(State) * Count == 8, uint2, uint4>>;
  static_assert(sizeof(Words) == sizeof(State) * Count);
  CF_DEVICE static StateRun of(Words const& words) {
    StateRun run;
    memcpy(run.states, &words, sizeof(words));
    return run;
  }
};

}  // namespace comfuse::sm90
