// What the templates of a kernel ask of a program's types: what is of which kind, its lists, its parts.
#pragma once

#include "comfuse/program.hpp"

namespace comfuse {

// ---- which template a type is of
#define CF_IS(NAME, PARAMETERS, ...)    \
  template <class>                      \
  struct Is##NAME : std::false_type {}; \
  template <PARAMETERS>                 \
  struct Is##NAME<NAME<__VA_ARGS__>> : std::true_type {}
#define CF_PARAMETERS(...) __VA_ARGS__
CF_IS(Product, int P, P);
CF_IS(Tile, CF_PARAMETERS(int I, class T), I, T);
CF_IS(StridedTile, CF_PARAMETERS(int I, class T), I, T);
CF_IS(RowVector, CF_PARAMETERS(int I, class T), I, T);
CF_IS(ColumnVector, CF_PARAMETERS(int I, class T), I, T);
CF_IS(Vector, class X, X);
CF_IS(RowReduce, CF_PARAMETERS(int R, class M, class X), R, M, X);
CF_IS(GroupReduce, CF_PARAMETERS(int R, class M, int G, class X), R, M, G, X);
CF_IS(ColReduce, CF_PARAMETERS(int R, class M, class X), R, M, X);
CF_IS(FullReduce, CF_PARAMETERS(int R, class M, class X), R, M, X);
CF_IS(Keep, class X, X);
CF_IS(Pass, class X, X);
CF_IS(HandRow, CF_PARAMETERS(class V, class X), V, X);
CF_IS(HandFold, CF_PARAMETERS(class V, class X), V, X);
CF_IS(Online, CF_PARAMETERS(class A, class B), A, B);
CF_IS(TileStore, CF_PARAMETERS(int O, class T, class X), O, T, X);
CF_IS(StridedStore, CF_PARAMETERS(int O, class T, class X), O, T, X);
CF_IS(ColumnStore, CF_PARAMETERS(int O, class T, class X), O, T, X);
CF_IS(GroupStore, CF_PARAMETERS(int O, class T, class X), O, T, X);
CF_IS(RowStore, CF_PARAMETERS(int O, class T, class X), O, T, X);
CF_IS(ScalarStore, CF_PARAMETERS(int O, class T, class X), O, T, X);
CF_IS(Phase, CF_PARAMETERS(class T, class C, class L, class E, class G), T, C, L, E, G);
CF_IS(RowTail, CF_PARAMETERS(class C, class E), C, E);
CF_IS(ColTail, class E, E);
CF_IS(FullTail, class E, E);
#undef CF_PARAMETERS
#undef CF_IS
template <class X>
struct IsReduction : std::bool_constant<IsRowReduce<X>::value || IsGroupReduce<X>::value ||
                                        IsColReduce<X>::value || IsFullReduce<X>::value> {};

// What an operand or a store names: the element type, and the position among operands or outputs.
template <class>
struct ElementOf;
template <template <int, class> class Leaf, int I, class T>
struct ElementOf<Leaf<I, T>> {
  using type = T;
  static constexpr int index = I;
};
template <class X>
struct ElementOf<Vector<X>> {
  using type = float;
};
template <template <int, class, class> class Store, int O, class T, class X>
struct ElementOf<Store<O, T, X>> {
  using type = T;
  static constexpr int index = O;
};

// What a reduction names.  `kGroup` is 0 but for a GroupReduce.
template <class>
struct ReductionOf;
template <template <int, class, class> class Reduce, int R, class MonoidT, class X>
struct ReductionOf<Reduce<R, MonoidT, X>> {
  using Monoid = MonoidT;
  static constexpr int index = R, kGroup = 0;
};
template <int R, class MonoidT, int G, class X>
struct ReductionOf<GroupReduce<R, MonoidT, G, X>> {
  using Monoid = MonoidT;
  static constexpr int index = R, kGroup = G;
};

// ---- lists
// Position of T among the members of list L for which Is<member> holds; their number if T is absent.
template <template <class> class Is, class T, class... X>
constexpr int index_among(List<X...>) {
  int index = 0;
  bool found = false;
  ((found = found || std::is_same<T, X>::value, index += !found && Is<X>::value), ...);
  return index;
}
template <template <class> class Is, class... X>
constexpr int count_of(List<X...>) {
  return (0 + ... + int(Is<X>::value));
}

template <class P>
struct HasTiles : std::bool_constant<(P::Tiles::size > 0)> {};

template <class... L>
struct Concatenate {
  using type = List<>;
};
template <class... A>
struct Concatenate<List<A...>> {
  using type = List<A...>;
};
template <class... A, class... B, class... Rest>
struct Concatenate<List<A...>, List<B...>, Rest...> : Concatenate<List<A..., B...>, Rest...> {};

template <template <class> class Is, class L>
struct Filter;
template <template <class> class Is, class... X>
struct Filter<Is, List<X...>> : Concatenate<std::conditional_t<Is<X>::value, List<X>, List<>>...> {};

template <int I, class L>
struct MemberOf;
template <class X, class... Rest>
struct MemberOf<0, List<X, Rest...>> {
  using type = X;
};
template <int I, class X, class... Rest>
struct MemberOf<I, List<X, Rest...>> : MemberOf<I - 1, List<Rest...>> {};

template <class L, class Absent>
struct FirstOr {
  using type = Absent;
};
template <class X, class... Rest, class Absent>
struct FirstOr<List<X, Rest...>, Absent> {
  using type = X;
};

// ---- the parts of a program
template <class ProgramT>
using PhasesOf = typename Filter<IsPhase, ProgramT>::type;
template <class ProgramT>
using RowTailOf = typename FirstOr<typename Filter<IsRowTail, ProgramT>::type, RowTail<List<>, List<>>>::type;
template <class ProgramT>
using ColTailOf = typename FirstOr<typename Filter<IsColTail, ProgramT>::type, ColTail<List<>>>::type;
template <class ProgramT>
using FullTailOf = typename FirstOr<typename Filter<IsFullTail, ProgramT>::type, FullTail<List<>>>::type;

template <class PhasesT>
struct EffectsOfPhases;
template <class... P>
struct EffectsOfPhases<List<P...>> : Concatenate<typename P::Effects...> {};
// All effects of the phases, those of the tails left out.
template <class ProgramT>
using PhaseEffectsOf = typename EffectsOfPhases<PhasesOf<ProgramT>>::type;
template <class ProgramT>
using ReductionsOf = typename Filter<IsReduction, PhaseEffectsOf<ProgramT>>::type;

// Everything that leaves the kernel.
template <class X>
struct IsStore
    : std::bool_constant<IsTileStore<X>::value || IsStridedStore<X>::value || IsColumnStore<X>::value ||
                         IsGroupStore<X>::value || IsRowStore<X>::value || IsScalarStore<X>::value> {};
template <class ProgramT>
using AllEffectsOf =
    typename Concatenate<PhaseEffectsOf<ProgramT>, typename RowTailOf<ProgramT>::Effects,
                         typename ColTailOf<ProgramT>::Effects, typename FullTailOf<ProgramT>::Effects>::type;
template <class ProgramT>
using StoresOf = typename Filter<IsStore, AllEffectsOf<ProgramT>>::type;
template <class... Store>
constexpr int output_count(List<Store...>) {
  int count = 0;
  ((count = ElementOf<Store>::index >= count ? ElementOf<Store>::index + 1 : count), ...);
  return count;
}

// Columns of a group: one number a program; 0 if it has no GroupReduce.
template <class... E>
constexpr int group_columns(List<E...>) {
  int columns = 0;
  ((columns = ReductionOf<E>::kGroup > 0 ? ReductionOf<E>::kGroup : columns), ...);
  return columns;
}

// Whether expressions, or what is made of them, read a leaf.
template <class Leaf, class X>
constexpr bool reads_leaf = std::is_same<Leaf, X>::value;
template <class Leaf, class... X>
constexpr bool reads_leaf<Leaf, List<X...>> = (false || ... || reads_leaf<Leaf, X>);
template <class Leaf, class Fn, class... X>
constexpr bool reads_leaf<Leaf, Map<Fn, X...>> = reads_leaf<Leaf, List<X...>>;
template <class Leaf, int I, class X>
constexpr bool reads_leaf<Leaf, Column<I, X>> = reads_leaf<Leaf, X>;
template <class Leaf, class X>
constexpr bool reads_leaf<Leaf, Vector<X>> = std::is_same<Leaf, Vector<X>>::value || reads_leaf<Leaf, X>;
template <class Leaf, class X>
constexpr bool reads_leaf<Leaf, Pass<X>> = reads_leaf<Leaf, X>;
template <class Leaf, class X>
constexpr bool reads_leaf<Leaf, Keep<X>> = reads_leaf<Leaf, X>;
template <class Leaf, int R, class M, class X>
constexpr bool reads_leaf<Leaf, RowReduce<R, M, X>> = reads_leaf<Leaf, X>;
template <class Leaf, class V, class X>
constexpr bool reads_leaf<Leaf, HandRow<V, X>> = reads_leaf<Leaf, X>;
template <class Leaf, class V, class X>
constexpr bool reads_leaf<Leaf, HandFold<V, X>> = reads_leaf<Leaf, X>;
template <class Leaf, class T, class C, class L, class E, class G>
constexpr bool reads_leaf<Leaf, Phase<T, C, L, E, G>> = reads_leaf<Leaf, List<C, L, E, G>>;
template <class Leaf, class A, class B>
constexpr bool reads_leaf<Leaf, Online<A, B>> = reads_leaf<Leaf, List<A, B>>;
template <class Leaf, class C, class E>
constexpr bool reads_leaf<Leaf, Handed<C, E>> = reads_leaf<Leaf, List<C, E>>;

// A chain's operands, or its vectors: those of a phase between its GEMMs, and those of no such phase.
template <class MiddleT>
struct ReadBy {
  template <class Operand>
  struct Is : std::bool_constant<reads_leaf<Operand, MiddleT>> {};
  template <class Operand>
  struct IsNot : std::bool_constant<!reads_leaf<Operand, MiddleT>> {};
};
template <class MiddleT, class OperandsT>
using MiddleOperandsOf = typename Filter<ReadBy<MiddleT>::template Is, OperandsT>::type;
template <class MiddleT, class OperandsT>
using OuterOperandsOf = typename Filter<ReadBy<MiddleT>::template IsNot, OperandsT>::type;

// ---- shared memory
template <class... X>
constexpr int max_tile_element(List<X...>) {
  int bytes = 0;
  ((bytes = IsTile<X>::value && int(sizeof(typename ElementOf<X>::type)) > bytes
                ? int(sizeof(typename ElementOf<X>::type))
                : bytes),
   ...);
  return bytes;
}

// Bytes that the vectors among a list's members take for one tile: all of them, or those before T.
template <class T, int TileM, int TileN, class... X>
constexpr int vector_bytes(List<X...>) {
  int bytes = 0;
  bool found = false;
  ((found = found || std::is_same<T, X>::value,
    bytes +=
    found
        ? 0
        : int(sizeof(typename ElementOf<X>::type)) *
              (IsRowVector<X>::value || IsVector<X>::value ? TileN : (IsColumnVector<X>::value ? TileM : 0))),
   ...);
  return bytes;
}

// Where V lies among them.
template <class V, int TileM, int TileN, class... X>
constexpr int vector_offset_among(List<X...> vectors) {
  static_assert((false || ... || std::is_same<V, X>::value), "there is no place for this vector");
  return vector_bytes<V, TileM, TileN>(vectors);
}

}  // namespace comfuse
