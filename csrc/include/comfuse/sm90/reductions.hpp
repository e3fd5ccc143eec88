// The reductions of a program: where each one's result is read, and what a thread holds of each.
//
// A row reduction that tile work reads again is fed back: every tile of the row block needs its result,
// and gets it through the row group (row_group.hpp).  One that only the RowTail reads is finished by the
// last of these tiles to arrive (row_tail.hpp).  Where tile work reads a column reduction, the tiles of a
// column block exchange all column reductions (column_group.hpp).  Other column reductions and full ones are
// finished by the collectors (collector.hpp), group reductions within the tile.
#pragma once

#include "comfuse/program_parts.hpp"
#include "comfuse/sm90/column_reduce.hpp"
#include "comfuse/sm90/monoids.hpp"

namespace comfuse::sm90 {

// ---- bit R: the Stat or ColStat of reduction R is read
template <class X>
constexpr uint64_t stats_read = 0;
template <int R, Field F>
constexpr uint64_t stats_read<Stat<R, F>> = uint64_t(1) << R;
template <int R, Field F>
constexpr uint64_t stats_read<ColStat<R, F>> = uint64_t(1) << R;
template <class... X>
constexpr uint64_t stats_read<List<X...>> = (uint64_t(0) | ... | stats_read<X>);
template <class Fn, class... X>
constexpr uint64_t stats_read<Map<Fn, X...>> = stats_read<List<X...>>;
template <template <int, class> class Value, int I, class X>
constexpr uint64_t stats_read<Value<I, X>> = stats_read<X>;
template <class X>
constexpr uint64_t stats_read<Keep<X>> = stats_read<X>;
template <template <int, class, class> class Effect, int I, class T, class X>
constexpr uint64_t stats_read<Effect<I, T, X>> = stats_read<X>;
template <int R, class M, int G, class X>
constexpr uint64_t stats_read<GroupReduce<R, M, G, X>> = stats_read<X>;
template <class T, class C, class L, class E, class G>
constexpr uint64_t stats_read<Phase<T, C, L, E, G>> = stats_read<List<C, L, E, G>>;
template <class ProgramT, class E>
constexpr bool is_read_by_phases = (stats_read<PhasesOf<ProgramT>> >> ReductionOf<E>::index & 1) != 0;

template <class ProgramT>
struct RowReductions {
  template <class E>
  struct IsFedBack : std::bool_constant<IsRowReduce<E>::value && is_read_by_phases<ProgramT, E>> {};
  template <class E>
  struct IsTail : std::bool_constant<IsRowReduce<E>::value && !IsFedBack<E>::value> {};
};
template <class ProgramT>
using FedBackOf = typename Filter<RowReductions<ProgramT>::template IsFedBack, ReductionsOf<ProgramT>>::type;
template <class ProgramT>
using RowTailReductionsOf =
    typename Filter<RowReductions<ProgramT>::template IsTail, ReductionsOf<ProgramT>>::type;
template <class ProgramT>
using ColReductionsOf = typename Filter<IsColReduce, ReductionsOf<ProgramT>>::type;
template <class ProgramT>
struct ColumnReductions {
  template <class E>
  struct IsRead : std::bool_constant<IsColReduce<E>::value && is_read_by_phases<ProgramT, E>> {};
  static constexpr bool kAreExchanged = Filter<IsRead, ReductionsOf<ProgramT>>::type::size > 0;
};
template <class ProgramT>
using ExchangedColumnsOf =
    std::conditional_t<ColumnReductions<ProgramT>::kAreExchanged, ColReductionsOf<ProgramT>, List<>>;
template <class ProgramT>
using CollectedColumnsOf =
    std::conditional_t<ColumnReductions<ProgramT>::kAreExchanged, List<>, ColReductionsOf<ProgramT>>;
template <class ProgramT>
using FullReductionsOf = typename Filter<IsFullReduce, ReductionsOf<ProgramT>>::type;

// Whether a program can do with pairs of columns: of what it reads, of what it reduces and of what it stores.
template <class X>
constexpr bool comes_in_pairs = !IsStridedTile<X>::value;
template <int I, class T>
constexpr bool comes_in_pairs<Tile<I, T>> = sizeof(T) == 2;
template <class E>
constexpr bool works_in_pairs = !IsStridedStore<E>::value;
template <int R, class M, class X>
constexpr bool works_in_pairs<RowReduce<R, M, X>> = !kReadsOffsets<M>;
template <int O, class T, class X>
constexpr bool works_in_pairs<TileStore<O, T, X>> = sizeof(T) == 2 || sizeof(T) == 4;
template <class ProgramT, class... Operand, class... Effect>
constexpr bool all_in_pairs(List<Operand...>, List<Effect...>) {
  return !ColumnReductions<ProgramT>::kAreExchanged && (true && ... && comes_in_pairs<Operand>) &&
         (true && ... && works_in_pairs<Effect>);
}

template <class>
struct Any : std::true_type {};
template <class E, class L>
constexpr int position_in = index_among<Any, E>(L{});

template <class E>
using StateOf = typename ReductionOf<E>::Monoid::State;

template <int R>
struct HasIndex {
  template <class E>
  struct Of : std::bool_constant<ReductionOf<E>::index == R> {};
};
template <int R, class ReductionsT>
using ReductionWithIndex =
    typename FirstOr<typename Filter<HasIndex<R>::template Of, ReductionsT>::type, void>::type;

// ---- finished States
template <int Reduction, class Monoid>
struct ReductionState {
  typename Monoid::State state;
};
// Of those reductions whose State one thread can have whole.
template <class ReductionsT>
struct States;
template <class... E>
struct States<List<E...>> : ReductionState<ReductionOf<E>::index, typename ReductionOf<E>::Monoid>... {};
template <int R, class Monoid>
CF_DEVICE typename Monoid::State& state_of(ReductionState<R, Monoid>& holder) {
  return holder.state;
}
template <int R, class Monoid>
CF_DEVICE typename Monoid::State const& state_of(ReductionState<R, Monoid> const& holder) {
  return holder.state;
}

template <int Reduction, class Monoid, int Groups>
struct GroupStates {
  typename Monoid::State groups[Groups];
};
template <int R, class Monoid, int Groups>
CF_DEVICE typename Monoid::State& group_state_of(GroupStates<R, Monoid, Groups>& holder, int group) {
  return holder.groups[group];
}
template <int R, class Monoid, int Groups>
CF_DEVICE typename Monoid::State const& group_state_of(GroupStates<R, Monoid, Groups> const& holder,
                                                       int group) {
  return holder.groups[group];
}

// What a thread remembers of a tile from phase to phase: the States of the row that it owns, of the whole
// row and of each group of the tile's columns.
template <class E, int TileN>
struct RememberedState {};
template <int R, class M, class X, int TileN>
struct RememberedState<RowReduce<R, M, X>, TileN> : ReductionState<R, M> {};
template <int R, class M, int G, class X, int TileN>
struct RememberedState<GroupReduce<R, M, G, X>, TileN> : GroupStates<R, M, TileN / G> {};
template <class ReductionsT, int TileN>
struct Stats;
template <class... E, int TileN>
struct Stats<List<E...>, TileN> : RememberedState<E, TileN>... {};

// ---- a phase's reductions while its fragments pass by
template <class Effect, int Rows>
struct Reducer {};
template <int R, class Monoid, class X, int Rows>
struct Reducer<RowReduce<R, Monoid, X>, Rows> {
  typename Monoid::Thread rows[Rows];
};
template <int R, class Monoid, int G, class X, int Rows>
struct Reducer<GroupReduce<R, Monoid, G, X>, Rows> {
  typename Monoid::Thread rows[Rows];  // of the group under way
};
template <int R, class Monoid, class X, int Rows>
struct Reducer<ColReduce<R, Monoid, X>, Rows> {
  ColumnPartial<Monoid> columns[8];  // of the 32 columns under way
};
template <int R, class Monoid, class X, int Rows>
struct Reducer<FullReduce<R, Monoid, X>, Rows> {
  typename Monoid::Thread all;
};
template <class EffectsT, int Rows>
struct Reducers;
template <class... E, int Rows>
struct Reducers<List<E...>, Rows> : Reducer<E, Rows>... {
  template <class Effect>
  CF_DEVICE Reducer<Effect, Rows>& of(Effect) {
    return *this;
  }
};

}  // namespace comfuse::sm90
