// The vocabulary of a fused program: types only.  A generated file composes them; the epilogue
// (sm90/epilogue.hpp) gives them their meaning on a GPU.
//
// An expression is evaluated in float32.  `Acc` is the GEMM's result, `Kept` what the last `Keep`
// wrote over it; both name the accumulator registers.
#pragma once

#include <stdint.h>

#include <type_traits>

namespace comfuse {

// ---- leaves; `Index` counts the operands in the order of the ABI
struct Acc {};
using Kept = Acc;
template <int Index, class T>
struct Tile {};  // (M, N)
template <int Index, class T>
struct RowVector {};  // (N,)
template <int Index, class T>
struct ColumnVector {};  // (M,)
template <int Index>
struct Scalar {};  // run-time float32
template <uint32_t Bits>
struct Imm {};  // float32 constant

// ---- inner nodes
template <class Fn, class... X>
struct Map {};  // Fn::apply(x...), element by element; functors.hpp has an alias for each Fn

// One field of a finished row reduction; legal in Column expressions of later phases.
enum class Field { value, mean, variance };
constexpr Field value = Field::value, mean = Field::mean, variance = Field::variance;
template <int Reduction, Field F>
struct Stat {};

// A value a row, computed once a row at the start of its phase; `Index` counts the phase's columns.
template <int Index, class Expr>
struct Column {};

// ---- effects
template <class Expr>
struct Keep {};  // overwrite the accumulators, for later phases
template <int Reduction, class Monoid, class Expr>
struct RowReduce {};
template <int Output, class T, class Expr>
struct TileStore {};
template <int Output, class T, class Expr>
struct ColumnStore {};

// ---- structure
template <class... T>
struct List {
  static constexpr int size = sizeof...(T);
};
template <class... T>
using Tiles = List<T...>;  // tile operands that a phase reads
template <class... T>
using Columns = List<T...>;  // its values a row
template <class... T>
using Lets = List<T...>;  // its tile values with more than one reader: evaluated once
template <class... T>
using Effects = List<T...>;
template <class... T>
using Operands = List<T...>;  // all tensor operands, in the order of the ABI

template <class TilesT, class ColumnsT, class LetsT, class EffectsT>
struct Phase {
  using Tiles = TilesT;
  using Columns = ColumnsT;
  using Lets = LetsT;
  using Effects = EffectsT;
};
template <class... P>
using Program = List<P...>;

// ---- the plan's constants
template <class T, int Columns>
struct Gemm {
  using Element = T;
  static constexpr int N = Columns;
};
// A team of warpgroups computes a tile, each its share of the rows.  Teams take the tiles in turn: the
// epilogue of one hides behind the GEMMs of the others.
template <int M, int N, int K, int Teams, int WarpgroupsOfTeam>
struct Schedule {
  static constexpr int TileM = M, TileN = N, TileK = K, kTeams = Teams, kTeamSize = WarpgroupsOfTeam;
};
template <int M, int N, int K, int Teams = 2>
using Pingpong = Schedule<M, N, K, Teams, 1>;
template <int M, int N, int K, int Teams = 1>
using Cooperative = Schedule<M, N, K, Teams, 2>;
template <int M, int N>
struct Cluster {
  static constexpr int ClusterM = M, ClusterN = N;
};
template <int Count>
struct Stages {  // of the ring of K blocks
  static constexpr int value = Count;
};
template <int Count>
struct TileSlots {  // for tile operands, each of 64 rows by 32 columns; one ring for each member of a team
  static constexpr int value = Count;
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

template <class>
struct IsTile : std::false_type {};
template <int I, class T>
struct IsTile<Tile<I, T>> : std::true_type {};
template <class>
struct IsRowVector : std::false_type {};
template <int I, class T>
struct IsRowVector<RowVector<I, T>> : std::true_type {};
template <class>
struct IsColumnVector : std::false_type {};
template <int I, class T>
struct IsColumnVector<ColumnVector<I, T>> : std::true_type {};
template <class>
struct IsRowReduce : std::false_type {};
template <int R, class M, class E>
struct IsRowReduce<RowReduce<R, M, E>> : std::true_type {};

template <class>
struct ElementOf;
template <template <int, class> class Leaf, int I, class T>
struct ElementOf<Leaf<I, T>> {
  using type = T;
  static constexpr int index = I;
};

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
    bytes += found ? 0
                   : int(sizeof(typename ElementOf<X>::type)) *
                         (IsRowVector<X>::value ? TileN : (IsColumnVector<X>::value ? TileM : 0))),
   ...);
  return bytes;
}

}  // namespace comfuse
