// Row reductions of the program between a chain's GEMMs: each thread adds up its pairs of columns block by
// block, quads merge behind the last.  With an Online middle also how far what was accumulated is behind.
#pragma once

#include "comfuse/sm90/fragment.hpp"
#include "comfuse/sm90/quad.hpp"
#include "comfuse/sm90/reductions.hpp"

namespace comfuse::sm90 {

// Which reduction an Online middle's exponentials are shifted by: the one Column of its second phase.
template <class>
struct PeakOf {
  static constexpr int index = -1;
};
template <class First, class Second>
struct PeakOf<Online<First, Second>> : PeakOf<typename Second::Columns> {};
template <int I, int R, Field F>
struct PeakOf<List<Column<I, Stat<R, F>>>> {
  static constexpr int index = R;
};

// `H`: the columns of a row.
template <class Middle, int H>
class MiddleStates {
 public:
  using Reductions = typename Filter<IsRowReduce, typename Middle::Effects>::type;
  static constexpr bool kOnline = IsOnline<Middle>::value;

  // Adds what the RowReduces among a phase's effects read of a fragment, of whose 32 columns `existing` do.
  // `first`: of the row's.
  template <class Env, class... E>
  CF_DEVICE void add(Env const& env, bool first, int existing, List<E...>) {
    (add(env, first, existing, E{}), ...);
  }

  // Of an Online middle, when its first phase has seen all of a block: the maximum has grown, and what was
  // in proportion to exponentials below it is scaled.
  CF_DEVICE void grow() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& peak = reducers_.of(Peak{}).rows[half].value;
#pragma unroll
      for (int mask = 1; mask <= 2; mask *= 2)
        peak = fn::Maximum::apply(peak, __shfl_xor_sync(kFullWarp, peak, mask));
      float const before = shifts_[0][half];
      shifts_[0][half] = finite(peak);
      factors_[half] = fn::Exp::apply(before - shifts_[0][half]);
    }
    scale_sums(SecondEffects<Middle>{});
  }
  // What exponentials are shifted by, of each of the thread's two rows, as a phase's Columns; and what they
  // have to be multiplied by that were shifted before the last growth.
  CF_DEVICE float const (*shifts() const)[2] { return shifts_; }
  template <int Size>
  CF_DEVICE void rescale(float (&accumulator)[Size]) const {
#pragma unroll
    for (int n = 0; n < Size; ++n) accumulator[n] *= factors_[n / 2 % 2];
  }

  // Of the row that the thread owns (quad.hpp), when all blocks have been added.
  CF_DEVICE States<Reductions> finish() const {
    States<Reductions> states;
    finish(states, Reductions{});
    return states;
  }

 private:
  static constexpr float kColumnsOfThread = H / 4;  // pairs, of each eight columns
  using Peak = ReductionWithIndex<PeakOf<Middle>::index, Reductions>;
  template <class M>
  struct SecondEffectsOf {
    using type = List<>;
  };
  template <class First, class Second>
  struct SecondEffectsOf<Online<First, Second>> {
    using type = typename Filter<IsRowReduce, typename Second::Effects>::type;
  };
  template <class M>
  using SecondEffects = typename SecondEffectsOf<M>::type;

  // As a shift, -inf would make inf - inf of elements that weigh nothing.
  CF_DEVICE static float finite(float peak) { return fmaxf(peak, -FLT_MAX); }

  template <class Env, class E>
  CF_DEVICE void add(Env const&, bool, int, E) {}
  template <class Env, int R, class Monoid, class X>
  CF_DEVICE void add(Env const& env, bool first, int existing, RowReduce<R, Monoid, X> effect) {
    Fragment const f = evaluate<X>(env);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      auto& thread = reducers_.of(effect).rows[half];
      if (existing >= kFragmentColumns) {
        float run[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) run[i] = f.at(half, i);
        thread.add_run(run, first, 0);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i)
          if (i / 2 * 8 < existing) thread.add(f.at(half, i), first && i == 0, 0);
      }
    }
  }

  template <class... E>
  CF_DEVICE void scale_sums(List<E...>) {
    (scale_sum(E{}), ...);
  }
  template <int R, class X>
  CF_DEVICE void scale_sum(RowReduce<R, Sum, X> effect) {
#pragma unroll
    for (int half = 0; half < 2; ++half) reducers_.of(effect).rows[half].value *= factors_[half];
  }

  template <class... E>
  CF_DEVICE void finish(States<Reductions>& states, List<E...>) const {
    (finish(states, E{}), ...);
  }
  template <int R, class Monoid, class X>
  CF_DEVICE void finish(States<Reductions>& states, RowReduce<R, Monoid, X>) const {
    Reducer<RowReduce<R, Monoid, X>, 2> const& reducer = reducers_;
    typename Monoid::State rows[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) rows[half] = reducer.rows[half].finish(kColumnsOfThread);
    state_of<R>(states) = Quad<1>::template reduce<Monoid>(rows, [](int) { return kColumnsOfThread; });
  }

  Reducers<Reductions, 2> reducers_;
  float shifts_[1][2] = {{-FLT_MAX, -FLT_MAX}}, factors_[2];
};

}  // namespace comfuse::sm90
