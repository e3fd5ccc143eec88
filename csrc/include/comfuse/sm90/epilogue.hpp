// Runs a program's phases over one tile, whose GEMM result lies in the accumulators.
//
// A phase: values a row (Columns), then 32 columns by 32 columns the fragments (Lets, Effects),
// then its row reductions, over the tile's threads and, if a row spans several tiles, over the row
// group.  The threads of a row split its per-row work: of the rows that a quad shares, thread q owns
// one, merges its reductions and evaluates its Columns, and hands the results to the other three.
#pragma once

#include "comfuse/sm90/row_group.hpp"
#include "comfuse/sm90/store.hpp"

namespace comfuse::sm90 {

// The finished State of every reduction of a program, for the row that this thread owns.
template <class PhaseT, class Effect>
struct StatHolder {};
template <int Reduction, class Monoid>
struct ReductionState {
  typename Monoid::State state;
};
template <class PhaseT, int R, class Monoid, class X>
struct StatHolder<PhaseT, RowReduce<R, Monoid, X>> : ReductionState<R, Monoid> {};
template <class PhaseT, class EffectsT>
struct PhaseStats;
template <class PhaseT, class... E>
struct PhaseStats<PhaseT, List<E...>> : StatHolder<PhaseT, E>... {};
template <class ProgramT>
struct Stats;
template <class... P>
struct Stats<List<P...>> : PhaseStats<P, typename P::Effects>... {};
template <int R, class Monoid>
CF_DEVICE typename Monoid::State& state_of(ReductionState<R, Monoid>& holder) {
  return holder.state;
}
template <int R, class Monoid>
CF_DEVICE typename Monoid::State const& state_of(ReductionState<R, Monoid> const& holder) {
  return holder.state;
}

// A phase's reductions while its fragments pass by: one Thread a row.
template <class Effect, int Rows>
struct Reducer {};
template <int R, class Monoid, class X, int Rows>
struct Reducer<RowReduce<R, Monoid, X>, Rows> {
  typename Monoid::Thread rows[Rows];
};
template <class EffectsT, int Rows>
struct Reducers;
template <class... E, int Rows>
struct Reducers<List<E...>, Rows> : Reducer<E, Rows>... {};

template <class Kernel>
class Epilogue {
  using Params = typename Kernel::Params;
  using Item = typename Kernel::Scheduler::Item;
  static constexpr int kFragments = Kernel::kFragments, kRows = 2 * kFragments;  // rows a thread touches
  static constexpr int kChunks = Kernel::TileN / kFragmentColumns;

 public:
  // In shared memory: the member's ring of slots for tile operands, its team's buffer for vectors.
  struct Shared {
    uint8_t *slots, *vectors;
    uint64_t *slot_full, *slot_empty, *vector_full, *vector_empty;
  };

  CF_DEVICE Epilogue(Params const& params, Shared const& shared, int team, int member)
      : params_(params), shared_(shared), team_(team) {
    int const lane = lane_id(), warp = warp_id() % 4, q = lane % 4;
    row_ = member * (kFragments * 64) + warp * 16;
    owned_row_ = row_ + (kFragments == 2 ? (q / 2) * 64 : 0) + (q % 2) * 8 + lane / 4;
    if constexpr (Kernel::kExchanges)
      parity_ = LaunchParity(params.parity_counter, gridDim.x * Kernel::kConsumerWarps);
    if (kOrdered && team == Kernel::kTeams - 1) SlotTurn::pass(team);
  }

  // Passes over items of the other teams.
  CF_DEVICE void skip_items(int count) {
    if constexpr (kOrdered) slot_.advance(count * Kernel::kSlotsPerItem);
  }

  CF_DEVICE void run(typename Kernel::Accumulator& accumulator, Item const& item) {
    if constexpr (kOrdered) SlotTurn::await(team_);
    if constexpr (Kernel::kVectorBytes > 0) wait(*shared_.vector_full, vector_phase_);
    run_phases(accumulator, item, typename Kernel::Program{});
    if constexpr (Kernel::kVectorBytes > 0) {
      __syncwarp();
      if (lane_id() == 0) arrive(*shared_.vector_empty);
      vector_phase_ ^= 1;
    }
  }

  CF_DEVICE void leave() const {
    if constexpr (Kernel::kExchanges) parity_.leave();
  }

 private:
  // What Column expressions read, for the owned row.
  template <class PhaseT>
  struct RowSource {
    Epilogue const& epilogue;
    float values[PhaseT::Columns::size + 1];
  };

  template <class P, int R, Field F>
  CF_DEVICE static float evaluate_row(RowSource<P> const& s, Stat<R, F>) {
    return state_of<R>(s.epilogue.stats_).template get<F>(1.f / Kernel::N);
  }
  template <class P, int I, class T>
  CF_DEVICE static float evaluate_row(RowSource<P> const& s, ColumnVector<I, T>) {
    auto const* x = reinterpret_cast<T const*>(s.epilogue.shared_.vectors +
                                               Kernel::template vector_offset<ColumnVector<I, T>>);
    return to_float(x[s.epilogue.owned_row_]);
  }
  template <class P, int I>
  CF_DEVICE static float evaluate_row(RowSource<P> const& s, Scalar<I>) {
    return s.epilogue.params_.scalars[I];
  }
  template <class P, uint32_t Bits>
  CF_DEVICE static float evaluate_row(RowSource<P> const&, Imm<Bits>) {
    return __uint_as_float(Bits);
  }
  template <class P, int I, class X>
  CF_DEVICE static float evaluate_row(RowSource<P> const& s, Column<I, X>) {
    return s.values[I];
  }
  template <class P, class Fn, class... X>
  CF_DEVICE static float evaluate_row(RowSource<P> const& s, Map<Fn, X...>) {
    return Fn::apply(evaluate_row(s, X{})...);
  }

  template <class... P>
  CF_DEVICE void run_phases(typename Kernel::Accumulator& accumulator, Item const& item, List<P...>) {
    run_phases(accumulator, item, List<P...>{}, std::make_integer_sequence<int, sizeof...(P)>{});
  }
  template <class... P, int... I>
  CF_DEVICE void run_phases(typename Kernel::Accumulator& accumulator, Item const& item, List<P...>,
                            std::integer_sequence<int, I...>) {
    constexpr int kLast = last_phase_with_tiles(List<P...>{});
    (run_phase<P, I == kLast>(accumulator, item), ...);
  }

  template <class P, bool kLastWithTiles>
  CF_DEVICE void run_phase(typename Kernel::Accumulator& accumulator, Item const& item) {
    float columns[P::Columns::size + 1][kRows];
    RowSource<P> rows{*this, {}};
    evaluate_columns(rows, columns, typename P::Columns{});
    store_columns(rows, item, typename P::Effects{});

    int const valid_columns = min(Kernel::TileN, Kernel::N - item.column());
    Reducers<typename P::Effects, kRows> reducers;
    FragmentSource<Kernel, P> source(params_, item, shared_.vectors, row_, columns);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      Slots<P> slots;
      acquire(slots);
#pragma unroll
      for (int i = 0; i < kFragments; ++i) {
        source.i = i;
        source.column = chunk * kFragmentColumns;
        source.tiles = slots.address[i];
        float* acc = accumulator[i] + source.column / 2;
#pragma unroll
        for (int p = 0; p < Kernel::kProducts; ++p) {
#pragma unroll
          for (int n = 0; n < kFragmentValues; ++n) source.acc[p].v[n] = acc[p * (Kernel::TileN / 2) + n];
        }
        bool const exists = !Kernel::kClippedN || source.column + first_column_of_thread() < valid_columns;
        with_lets(source, typename P::Lets{}, [&](auto const& env) {
          perform_all(env, acc, reducers, item, exists, typename P::Effects{});
        });
      }
      release(slots);
    }
    reduce_all<P>(reducers, item, valid_columns, typename P::Effects{});
    // After the wait for the row group, although the slots are free before: epilogues that overlap more
    // poll more, and gained nothing.
    if constexpr (kOrdered && kLastWithTiles) SlotTurn::pass(team_);
  }

  // ---- values a row
  template <class P, int... I, class... X>
  CF_DEVICE void evaluate_columns(RowSource<P>& rows, float (*columns)[kRows], List<Column<I, X>...>) {
    ((rows.values[I] = evaluate_row(rows, X{}), broadcast(rows.values[I], columns[I])), ...);
  }
  CF_DEVICE void broadcast(float value, float (&rows)[kRows]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) rows[r] = __shfl_sync(kFullWarp, value, lane_id() / 4 * 4 + r);
  }
  template <class P, class... E>
  CF_DEVICE void store_columns(RowSource<P> const& rows, Item const& item, List<E...>) {
    (store_column(rows, item, E{}), ...);
  }
  template <class P, class E>
  CF_DEVICE void store_column(RowSource<P> const&, Item const&, E) {}
  template <class P, int Output, class T, class X>
  CF_DEVICE void store_column(RowSource<P> const& rows, Item const& item, ColumnStore<Output, T, X>) {
    int const row = item.row() + owned_row_;
    bool const owner = kFragments == 2 || lane_id() % 4 < 2;
    if (item.tile_n == 0 && owner && row < params_.m)
      static_cast<T*>(params_.outputs[Output].data)[row * params_.outputs[Output].stride] =
          from_float<T>(evaluate_row(rows, X{}));
  }

  // ---- tile operands: a slot holds 64 rows of 32 columns.  The teams share a ring, so each waits for
  // its items' slots only after the team before has seen its own filled: a parity bit tells two laps
  // apart, not three.
  static constexpr bool kOrdered = Kernel::kTeams > 1 && Kernel::kSlotsPerItem > 0;
  using SlotTurn = Turns<Kernel::kTeams, Kernel::kTeamSize * kWarpgroup, 1>;
  template <class... P>
  static constexpr int last_phase_with_tiles(List<P...>) {
    int last = -1, phase = 0;
    ((last = P::Tiles::size > 0 ? phase : last, ++phase), ...);
    return last;
  }
  template <class P>
  struct Slots {
    uint32_t index[kFragments][P::Tiles::size + 1];
    uint8_t const* address[kFragments][P::Tiles::size + 1];
  };
  template <class P>
  CF_DEVICE void acquire(Slots<P>& slots) {
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
#pragma unroll
      for (int t = 0; t < P::Tiles::size; ++t, slot_.advance()) {
        wait(shared_.slot_full[slot_.slot], slot_.phase);
        slots.index[i][t] = slot_.slot;
        slots.address[i][t] = shared_.slots + slot_.slot * Kernel::kSlotBytes;
      }
    }
  }
  template <class P>
  CF_DEVICE void release(Slots<P> const& slots) {
    if constexpr (P::Tiles::size > 0) {
      // TMA will overwrite what this warp has read: without the fence the reads may still be under way.
      fence_async_shared();
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kFragments; ++i) {
#pragma unroll
        for (int t = 0; t < P::Tiles::size; ++t)
          if (lane_id() == 0) arrive(shared_.slot_empty[slots.index[i][t]]);
      }
    }
  }

  // ---- effects on a fragment.  N is a multiple of 8, so the eight columns that a thread holds of it
  // exist or do not: `exists`.
  template <class Env, class R, class... E>
  CF_DEVICE void perform_all(Env const& env, float* acc, R& reducers, Item const& item, bool exists,
                             List<E...>) {
    (perform(env, acc, reducers, item, exists, E{}), ...);
  }
  template <class Env, class R, class X>
  CF_DEVICE void perform(Env const& env, float* acc, R&, Item const&, bool, Keep<X>) {
    Fragment const f = evaluate<X>(env);
#pragma unroll
    for (int n = 0; n < kFragmentValues; ++n) acc[n] = f.v[n];
  }
  template <class Env, class R, int Reduction, class Monoid, class X>
  CF_DEVICE void perform(Env const& env, float*, R& reducers, Item const&, bool exists,
                         RowReduce<Reduction, Monoid, X>) {
    auto& threads = static_cast<Reducer<RowReduce<Reduction, Monoid, X>, kRows>&>(reducers).rows;
    Fragment const f = evaluate<X>(env);
    bool const first = env.source().column == 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      auto& thread = threads[2 * env.source().i + half];
      if (exists) {
#pragma unroll
        for (int i = 0; i < 8; ++i) thread.add(f.at(half, i), first && i == 0, env.source().column + i);
      }
    }
  }
  template <class Env, class R, int Output, class T, class X>
  CF_DEVICE void perform(Env const& env, float*, R&, Item const&, bool, TileStore<Output, T, X>) {
    store(env.source(), evaluate<X>(env), TileStore<Output, T, X>{});
  }
  template <class Env, class R, int Output, class T, class X>
  CF_DEVICE void perform(Env const&, float*, R&, Item const&, bool, ColumnStore<Output, T, X>) {}

  // ---- reductions
  template <class P, class R, class... E>
  CF_DEVICE void reduce_all(R const& reducers, Item const& item, int valid_columns, List<E...>) {
    (reduce_tile(reducers, item, valid_columns, E{}), ...);
    if constexpr (Kernel::kExchanges && count_of<IsRowReduce>(List<E...>{}) > 0) {
      if (!item.phantom()) Group::rest();
      (reduce_row_group(item, E{}), ...);
    }
  }
  template <class R, class E>
  CF_DEVICE void reduce_tile(R const&, Item const&, int, E) {}
  template <class R, int Reduction, class Monoid, class X>
  CF_DEVICE void reduce_tile(R const& reducers, Item const& item, int valid_columns,
                             RowReduce<Reduction, Monoid, X>) {
    auto const& threads = static_cast<Reducer<RowReduce<Reduction, Monoid, X>, kRows> const&>(reducers).rows;
    typename Monoid::State states[kRows];
    float const count = columns_of_thread(lane_id() % 4, valid_columns);
#pragma unroll
    for (int r = 0; r < kRows; ++r) states[r] = threads[r].finish(count);
    typename Monoid::State const state = reduce_quad<Monoid>(states, valid_columns);
    state_of<Reduction>(stats_) = state;
    if constexpr (Kernel::kExchanges) {
      bool const owner = kFragments == 2 || lane_id() % 4 < 2;
      if (owner && !item.phantom())
        Group::publish(words(Reduction, item), item.tile_n, owned_row_, state.pack(), parity_.tag());
    }
  }
  template <class E>
  CF_DEVICE void reduce_row_group(Item const&, E) {}
  template <int Reduction, class Monoid, class X>
  CF_DEVICE void reduce_row_group(Item const& item, RowReduce<Reduction, Monoid, X>) {
    if (!item.phantom())
      state_of<Reduction>(stats_) =
          Group::template gather<Monoid>(words(Reduction, item), owned_row_, parity_.tag());
  }

  // Of the tile's valid columns, those that thread q of a quad holds.
  CF_DEVICE static float columns_of_thread(int q, int valid_columns) {
    if constexpr (!Kernel::kClippedN) return Kernel::TileN / 4;
    return 8 * max(0, (valid_columns - 8 * q + 31) / 32);
  }

  // Four threads hold parts of each of 2 or 4 rows; thread q ends with the whole of row q.
  template <class Monoid>
  CF_DEVICE static typename Monoid::State reduce_quad(typename Monoid::State const (&rows)[kRows],
                                                      int valid_columns) {
    using State = typename Monoid::State;
    int const q = lane_id() % 4;
    auto merge = [](State const& mine, State const& partner, int mask, float count, float partner_count) {
      return Monoid::merge(mine, partner.shuffle_xor(mask), count, partner_count);
    };
    auto count = [&](int thread) { return columns_of_thread(thread, valid_columns); };
    if constexpr (kFragments == 2) {
      bool const high = q & 2, odd = q & 1;
      State const a =
          merge(select(high, rows[2], rows[0]), select(high, rows[0], rows[2]), 2, count(q), count(q ^ 2));
      State const b =
          merge(select(high, rows[3], rows[1]), select(high, rows[1], rows[3]), 2, count(q), count(q ^ 2));
      return merge(select(odd, b, a), select(odd, a, b), 1, count(q) + count(q ^ 2),
                   count(q ^ 1) + count(q ^ 3));
    } else {
      bool const odd = q & 1;
      State const a =
          merge(select(odd, rows[1], rows[0]), select(odd, rows[0], rows[1]), 1, count(q), count(q ^ 1));
      return merge(a, a, 2, count(q) + count(q ^ 1), count(q ^ 2) + count(q ^ 3));
    }
  }
  template <class State>
  CF_DEVICE static State select(bool condition, State const& a, State const& b) {
    return condition ? a : b;
  }

  using Group = RowGroup<Kernel::N, Kernel::TileM, Kernel::TileN, Kernel::Scheduler::kTilesN>;
  CF_DEVICE uint64_t* words(int reduction, Item const& item) const {
    return params_.words +
           (int64_t(reduction) * params_.row_blocks + item.row_block) * Kernel::kWordsPerRowBlock;
  }

  Params const& params_;
  Shared shared_;
  LaunchParity parity_;
  Stats<typename Kernel::Program> stats_;
  RingPosition<(Kernel::kSlots > 0 ? Kernel::kSlots : 1)> slot_;
  uint32_t vector_phase_ = 0;
  int team_;
  int row_;        // first of the warp's 16 rows in the tile
  int owned_row_;  // the row in the tile that this thread owns
};

}  // namespace comfuse::sm90
