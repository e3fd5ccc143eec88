// Runs a program's phases over one tile, whose GEMM result lies in the accumulators.
//
// A phase: values a row (Columns), then 32 columns by 32 columns the fragments (Groups, Lets, Effects), then
// its reductions.  The threads of a quad split their rows' work (quad.hpp): the owner of a row merges its
// reductions and evaluates its Columns and Groups, and hands the results to the other three.
#pragma once

#include "comfuse/sm90/accumulate.hpp"
#include "comfuse/sm90/cluster_group.hpp"
#include "comfuse/sm90/collector_memory.hpp"
#include "comfuse/sm90/column_group.hpp"
#include "comfuse/sm90/column_reduce.hpp"
#include "comfuse/sm90/column_tails.hpp"
#include "comfuse/sm90/quad.hpp"
#include "comfuse/sm90/row_group.hpp"
#include "comfuse/sm90/row_tail.hpp"
#include "comfuse/sm90/slot_ring.hpp"
#include "comfuse/sm90/store.hpp"
#include "comfuse/sm90/timeline.hpp"
#include "comfuse/sm90/values.hpp"
#include "comfuse/sm90/workspace.hpp"

namespace comfuse::sm90 {

template <class Kernel>
class Epilogue {
  using Params = typename Kernel::Params;
  using Program = typename Kernel::Program;
  using Item = typename Kernel::Scheduler::Item;
  using Tile = Extent<Kernel>;
  using Layout = WorkspaceLayout<Kernel>;
  using Collected = CollectorMemory<Kernel>;
  using InCluster = ClusterGroup<Kernel>;
  using Ring = typename Kernel::Ring;
  static constexpr int kFragments = Kernel::kFragments, kRows = 2 * kFragments;  // rows a thread touches
  static constexpr int TileN = Kernel::TileN, kChunks = TileN / kFragmentColumns;
  static constexpr int kGroup = group_columns(ReductionsOf<Program>{});
  static constexpr int kChunksOfGroup = kGroup > 0 ? kGroup / kFragmentColumns : kChunks;
  static_assert(kGroup % kFragmentColumns == 0 && kChunks % kChunksOfGroup == 0);
  using Owners = Quad<kFragments>;

 public:
  // In shared memory: the member's ring of slots for tile operands, its team's buffer for vectors, column
  // reductions that phases read, what all teams share with the collector, and what its team has of its
  // cluster.
  struct Shared {
    typename Ring::Shared ring;
    uint8_t* vectors;
    uint64_t *vector_full, *vector_empty;
    ColumnMemory<Kernel> columns;
    Collected collected;
    InCluster group;
  };

  // `warp`: in the team.
  CF_DEVICE Epilogue(Params const& params, Shared const& shared, int team, int warp)
      : params_(params),
        shared_(shared),
        ring_(shared.ring),
        timeline_(team, warp == 0 && lane_id() == 0),
        team_(team),
        warp_(warp) {
    if constexpr (Layout::kExchanges)
      parity_ = LaunchParity(params.workspace.parity_counter, gridDim.x * Kernel::kConsumerWarps);
    if (Ring::kOrdered && team == Kernel::kTeams - 1) Ring::Turn::pass(team);
  }

  // Of the team's work; its first steps are marked by who multiplies.
  CF_DEVICE Timeline& timeline() { return timeline_; }

  // The member's tile slots, for who reads some of them before the phases do.
  CF_DEVICE Ring& ring() { return ring_; }

  // Passes over items of the other teams.
  CF_DEVICE void skip_items(int count) { ring_.skip_items(count); }

  CF_DEVICE void run(typename Kernel::Accumulator& accumulator, Item const& item) {
    row_ = Tile::first_row_of_warp(warp_);
    // Where the compiler sees that they are the same for all tiles, it computes rows and addresses before the
    // first one and keeps them in registers while the GEMMs need those.
    asm volatile("" : "+r"(row_));
    owned_row_ = row_ + Owners::owned_row();
    if constexpr (Ring::kOrdered) Ring::Turn::await(team_);
    if constexpr (Kernel::kVectorBytes > 0) wait(*shared_.vector_full, phase_);
    if constexpr (Collected::kIsUsed) wait(shared_.collected.emptied(team_), phase_ ^ 1);
    timeline_.mark();
    run_phases(accumulator, item, PhasesOf<Program>{});
    run_row_tail(item);
    if constexpr (Layout::kHasColumnGroup)
      if (!item.phantom()) ColumnGroup<Kernel>(params_, shared_.columns, item).run_tail();
    if constexpr (Collected::kIsUsed) arrive(shared_.collected.filled(team_));
    __syncwarp();  // all that the warp has read comes before its arrival
    if constexpr (Kernel::kVectorBytes > 0)
      if (lane_id() == 0) arrive(*shared_.vector_empty);
    phase_ ^= 1;
    ++group_.item;
  }

  // When there are no tiles left.
  CF_DEVICE void leave() const {
    if constexpr (Layout::kExchanges) parity_.leave();
    if constexpr (Collected::kIsUsed) ColumnTails<Kernel>::run(params_, shared_.collected);
  }

 private:
  template <class... P>
  static constexpr int last_phase_with_tiles(List<P...>) {
    int last = -1, phase = 0;
    ((last = P::Tiles::size > 0 ? phase : last, ++phase), ...);
    return last;
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
    float columns[P::Columns::size + 1][kRows], groups[P::Groups::size + 1][kRows];
    RowSource<Kernel, P> rows{params_, item, stats_, shared_.vectors, owned_row_, {}};
    rows.evaluate(typename P::Columns{});
    broadcast(rows.values, columns);
    Tile const tile(item, params_.m);
    if (item.tile_n == 0) store_columns(rows, tile, typename P::Effects{});

    Reducers<typename P::Effects, kRows> reducers;
    FragmentSource<Kernel, P> source(params_, item, shared_.vectors, row_, columns);
    source.groups = groups;
    source.column_states = shared_.columns;
    source.runs = ring_.runs();
    ring_.template begin<P>(params_, row_);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      HeldSlots<kFragments, P::Tiles::size> slots;
      ring_.template acquire<P>(slots, chunk);
      if (kGroup > 0 && chunk % kChunksOfGroup == 0)
        begin_group<P>(rows, groups, tile, chunk / kChunksOfGroup);
#pragma unroll
      for (int i = 0; i < kFragments; ++i) {
        source.i = i;
        source.column = chunk * kFragmentColumns;
        source.tiles = slots.address[i];
#pragma unroll
        for (int p = 0; p < Kernel::kProducts; ++p) {
#pragma unroll
          for (int n = 0; n < kFragmentValues; ++n)
            source.acc[p].v[n] = accumulator[i][(p * TileN + source.column) / 2 + n];
        }
        with_lets(source, typename P::Lets{}, [&](auto const& env) {
          perform_all(env, accumulator[i] + source.column / 2, reducers, typename P::Effects{});
        });
      }
      ring_.template release_chunk<P>(slots);
      if (kGroup > 0 && (chunk + 1) % kChunksOfGroup == 0)
        end_group(reducers, chunk / kChunksOfGroup, typename P::Effects{});
    }
    timeline_.mark();
    reduce_all(reducers, item, tile, typename P::Effects{});
    timeline_.mark();
    // After the wait for the row group, although the slots are free before: epilogues that overlap more
    // poll more, and gained nothing.
    if constexpr (Ring::kOrdered && kLastWithTiles) Ring::Turn::pass(team_);
  }

  // ---- values a row, and a row and group
  template <int Count>
  CF_DEVICE static void broadcast(float const (&values)[Count], float (&rows)[Count][kRows]) {
#pragma unroll
    for (int v = 0; v < Count - 1; ++v) Owners::broadcast(values[v], rows[v]);
  }
  template <class P>
  CF_DEVICE void begin_group(RowSource<Kernel, P> const& rows, float (&values)[P::Groups::size + 1][kRows],
                             Tile const& tile, int group) {
    GroupSource<Kernel, P> source{rows, params_, group, {}};
    source.evaluate(typename P::Groups{});
    broadcast(source.values, values);
    if (tile.has_column(group * kGroup)) store_groups(source, tile, typename P::Effects{});
  }

  // ---- stores of the owned row; `Source`: RowSource or GroupSource
  CF_DEVICE bool stores_row(Tile const& tile) const { return Owners::owns() && tile.has_row(owned_row_); }
  template <class T>
  CF_DEVICE T* output_row(int output, Item const& item) const {
    CfTensor const& out = params_.outputs[output];
    return static_cast<T*>(out.data) + Kernel::batch_of_output(params_, output, item) +
           int64_t(item.row() + owned_row_) * out.stride;
  }
  template <class P, class... E>
  CF_DEVICE void store_columns(RowSource<Kernel, P> const& rows, Tile const& tile, List<E...>) const {
    if (stores_row(tile)) (store_column(rows, E{}), ...);
  }
  template <class Rows, class E>
  CF_DEVICE void store_column(Rows const&, E) const {}
  template <class Rows, int Output, class T, class X>
  CF_DEVICE void store_column(Rows const& rows, ColumnStore<Output, T, X>) const {
    *output_row<T>(Output, rows.item) = from_float<T>(evaluate_one(rows, X{}));
  }
  template <class P, class... E>
  CF_DEVICE void store_groups(GroupSource<Kernel, P> const& source, Tile const& tile, List<E...>) const {
    if (stores_row(tile)) (store_group(source, E{}), ...);
  }
  template <class Groups, class E>
  CF_DEVICE void store_group(Groups const&, E) const {}
  template <class Groups, int Output, class T, class X>
  CF_DEVICE void store_group(Groups const& source, GroupStore<Output, T, X>) const {
    Item const& item = source.rows.item;
    output_row<T>(Output, item)[item.tile_n * (TileN / kGroup) + source.group] =
        from_float<T>(evaluate_one(source, X{}));
  }

  // ---- effects on a fragment; `acc`: its values of product 0
  template <class Env, class R, class... E>
  CF_DEVICE void perform_all(Env const& env, float* acc, R& reducers, List<E...>) {
    (perform(env, acc, reducers.of(E{}), E{}), ...);
  }
  template <class Env, class R, class E>  // ColumnStore, GroupStore: not a fragment's
  CF_DEVICE void perform(Env const&, float*, R&, E) {}
  template <class Env, class R, class X>
  CF_DEVICE void perform(Env const& env, float* acc, R&, Keep<X>) {
    Fragment const f = evaluate<X>(env);
#pragma unroll
    for (int n = 0; n < kFragmentValues; ++n) acc[n] = f.v[n];
  }
  template <class Env, class R, int Output, class T, class X>
  CF_DEVICE void perform(Env const& env, float*, R&, TileStore<Output, T, X> effect) {
    store(env.source(), evaluate<X>(env), effect);
  }
  template <class Env, class R, int Output, class T, class X>
  CF_DEVICE void perform(Env const& env, float*, R&, StridedStore<Output, T, X> effect) {
    store(env.source(), evaluate<X>(env), effect);
  }

  template <class Env, class R, int Reduction, class Monoid, class X>
  CF_DEVICE void perform(Env const& env, float*, R& reducer, RowReduce<Reduction, Monoid, X> effect) {
    accumulate(env.source(), evaluate<X>(env), reducer, effect);
  }
  template <class Env, class R, int Reduction, class Monoid, int G, class X>
  CF_DEVICE void perform(Env const& env, float*, R& reducer, GroupReduce<Reduction, Monoid, G, X> effect) {
    accumulate(env.source(), evaluate<X>(env), reducer, effect);
  }
  template <class Env, class R, int Reduction, class Monoid, class X>
  CF_DEVICE void perform(Env const& env, float*, R& reducer, FullReduce<Reduction, Monoid, X> effect) {
    accumulate(env.source(), evaluate<X>(env), reducer, effect);
  }
  template <class Env, class R, int Reduction, class Monoid, class X>
  CF_DEVICE void perform(Env const& env, float*, R& reducer, ColReduce<Reduction, Monoid, X> effect) {
    auto const& source = env.source();
    accumulate(source, evaluate<X>(env), reducer, effect);
    if (source.i == kFragments - 1) {
      int const rows = Tile(source.item, params_.m).rows_of_warp(warp_);
      states_of_warp(effect)[source.column + column_after_scatter<Kernel::kPairs>()] =
          reduce_scatter(reducer.columns).finish(rows);
    }
  }
  template <class E>
  CF_DEVICE StateOf<E>* states_of_warp(E) const {
    if constexpr (Layout::kHasColumnGroup)
      return shared_.columns.template states<E>(warp_);
    else
      return shared_.collected.template columns<E>(team_, warp_);
  }

  // ---- reductions at the end of a phase
  template <class R, class... E>
  CF_DEVICE void reduce_all(R& reducers, Item const& item, Tile const& tile, List<E...>) {
    (reduce_tile(reducers.of(E{}), item, tile, E{}), ...);
    timeline_.mark();
    using Columns = typename Filter<IsExchanged, List<E...>>::type;
    constexpr int kFedBack = (0 + ... + int(is_fed_back<E>));
    if constexpr (InCluster::kIsUsed && kFedBack > 0) {
      shared_.group.await(group_, warp_, kFedBack);
      (gather_in_cluster(E{}), ...);
    }
    constexpr bool kRowsWait = Layout::kHasRowGroup && kFedBack > 0, kColumnsWait = Columns::size > 0;
    if ((!kRowsWait && !kColumnsWait) || item.phantom()) return;
    ColumnGroup<Kernel> const group(params_, shared_.columns, item);
    if constexpr (kColumnsWait) group.publish(parity_.tag(), Columns{});
    Exchange::rest();
    if constexpr (kRowsWait) (reduce_row_group(item, E{}), ...);
    if constexpr (kColumnsWait) group.gather(parity_.tag(), Columns{});
  }
  template <class E>
  struct IsExchanged : std::bool_constant<IsColReduce<E>::value && Layout::kHasColumnGroup> {};
  template <class R, class E>
  CF_DEVICE void reduce_tile(R const&, Item const&, Tile const&, E) {}
  template <class R, int Reduction, class Monoid, class X>
  CF_DEVICE void reduce_tile(R const& reducer, Item const& item, Tile const& tile,
                             RowReduce<Reduction, Monoid, X> effect) {
    typename Monoid::State states[kRows];
    auto count = [&](int q) { return tile.columns_of_thread(q); };
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      states[r] = reducer.rows[r].finish(count(lane_id() % 4), item.column() + first_column_of_thread());
    auto const state = Owners::template reduce<Monoid>(states, count);
    state_of<Reduction>(stats_) = state;
    if (Kernel::Scheduler::kTilesN == 1 || !Owners::owns() || item.phantom()) return;
    if constexpr (InCluster::kIsUsed && is_fed_back<RowReduce<Reduction, Monoid, X>>)
      shared_.group.template publish<RowReduce<Reduction, Monoid, X>>(group_, warp_, item.tile_n, owned_row_,
                                                                      state.pack());
    else if constexpr (is_fed_back<RowReduce<Reduction, Monoid, X>>)
      Group::publish(words(effect, item), item.tile_n, owned_row_, state.pack(), parity_.tag());
    else
      TailWords::template words<RowReduce<Reduction, Monoid, X>>(params_.workspace, params_.row_blocks, item,
                                                                 owned_row_)[item.tile_n * Kernel::TileM] =
          state.pack();
  }
  template <class R, int Reduction, class Monoid, class X>
  CF_DEVICE void reduce_tile(R const& reducer, Item const&, Tile const& tile,
                             FullReduce<Reduction, Monoid, X>) {
    float const count = tile.rows_of_thread(row_, lane_id() / 4) * tile.columns_of_thread(lane_id() % 4);
    auto const state = reduce_warp<Monoid>(reducer.all.finish(count), count);
    if (lane_id() == 0)
      shared_.collected.template full<FullReduce<Reduction, Monoid, X>>(team_, warp_) = state;
  }

  template <class R, class... E>
  CF_DEVICE void end_group(R& reducers, int group, List<E...>) {
    (reduce_group(reducers.of(E{}), group, E{}), ...);
  }
  template <class R, class E>
  CF_DEVICE void reduce_group(R const&, int, E) {}
  template <class R, int Reduction, class Monoid, int G, class X>
  CF_DEVICE void reduce_group(R const& reducer, int group, GroupReduce<Reduction, Monoid, G, X>) {
    typename Monoid::State states[kRows];
    auto count = [](int) { return float(G / 4); };  // a group exists as a whole, or not at all
#pragma unroll
    for (int r = 0; r < kRows; ++r) states[r] = reducer.rows[r].finish(G / 4);
    group_state_of<Reduction>(stats_, group) = Owners::template reduce<Monoid>(states, count);
  }

  // ---- across the tiles of a row
  using Group = RowGroup<Kernel::N, Kernel::TileM, TileN, Kernel::Scheduler::kTilesN>;
  template <class E>
  static constexpr bool is_fed_back = position_in<E, FedBackOf<Program>> < FedBackOf<Program>::size;
  template <class E>
  CF_DEVICE uint64_t* words(E, Item const& item) const {
    constexpr int kReduction = position_in<E, FedBackOf<Program>>;
    return params_.workspace.row_group +
           (int64_t(kReduction) * params_.row_blocks + item.row_block) * Layout::kWordsPerRowBlock;
  }
  template <class E>
  CF_DEVICE void reduce_row_group(Item const&, E) {}
  template <int Reduction, class Monoid, class X>
  CF_DEVICE void reduce_row_group(Item const& item, RowReduce<Reduction, Monoid, X> effect) {
    if constexpr (is_fed_back<RowReduce<Reduction, Monoid, X>>)
      state_of<Reduction>(stats_) =
          Group::template gather<Monoid>(words(effect, item), owned_row_, parity_.tag());
  }

  template <class E>
  CF_DEVICE void gather_in_cluster(E) {}
  template <int Reduction, class Monoid, class X>
  CF_DEVICE void gather_in_cluster(RowReduce<Reduction, Monoid, X>) {
    using E = RowReduce<Reduction, Monoid, X>;
    if constexpr (is_fed_back<E>)
      state_of<Reduction>(stats_) = shared_.group.template gather<E>(group_, owned_row_);
  }

  using TailWords = RowTailWords<Kernel>;
  CF_DEVICE void run_row_tail(Item const& item) {
    using Tail = RowTailOf<Program>;
    if constexpr (Tail::Effects::size > 0) {
      if (item.phantom()) return;
      if constexpr (Layout::kHasRowTail) {
        if (!TailWords::arrives_last(params_.workspace, item, warp_)) return;
        gather_rows(item, RowTailReductionsOf<Program>{});
      } else if (item.tile_n > 0) {
        return;
      }
      RowSource<Kernel, Tail> rows{params_, item, stats_, shared_.vectors, owned_row_, {}};
      rows.evaluate(typename Tail::Columns{});
      store_columns(rows, Tile(item, params_.m), typename Tail::Effects{});
    }
  }
  template <class... E>
  CF_DEVICE void gather_rows(Item const& item, List<E...>) {
    ((state_of<ReductionOf<E>::index>(stats_) = TailWords::template merge<typename ReductionOf<E>::Monoid>(
          TailWords::template words<E>(params_.workspace, params_.row_blocks, item, owned_row_))),
     ...);
  }

  Params const& params_;
  Shared shared_;
  Ring ring_;
  Timeline timeline_;
  LaunchParity parity_;
  typename InCluster::Position group_;
  Stats<ReductionsOf<Program>, TileN> stats_;
  uint32_t phase_ = 0;  // of the team's vectors, and of its buffers for the collector
  int team_;
  int warp_;       // in the team
  int row_;        // first of the warp's 16 rows in the tile
  int owned_row_;  // the row in the tile that this thread owns
};

}  // namespace comfuse::sm90
