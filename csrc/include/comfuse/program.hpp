// The vocabulary of a fused program: types only.  A generated file composes them; the epilogue
// (sm90/epilogue.hpp) gives them their meaning on a GPU.
//
// An expression is evaluated in float32.  It varies over the tile space (m, n), or over less: a value a row
// ("column vector"), a value a row and group of columns, a value a column ("row vector"), or one value.
#pragma once

#include <stdint.h>

#include <type_traits>

namespace comfuse {

// ---- leaves; `Index` counts the operands in the order of the ABI
template <int P>
struct Product {};       // the P-th GEMM's result, in the accumulator registers
using Acc = Product<0>;  // the first GEMM's result until a `Keep` overwrites it,
using Kept = Acc;        // and what the last `Keep` wrote from then on
template <int Index, class T>
struct Tile {};  // (M, N), aligned to 16 bytes; TMA brings it to shared memory
template <int Index, class T>
struct StridedTile {};  // (M, N) of any alignment, rows in two levels of strides; read from global memory
template <int Index, class T>
struct RowVector {};  // (N,)
template <int Index, class T>
struct ColumnVector {};  // (M,)
template <int Index>
struct Scalar {};  // run-time float32
template <uint32_t Bits>
struct Imm {};           // float32 constant
struct RowIndex {};      // m within its batch: a value a row
struct ColumnIndex {};   // n: a value a column
struct RowCount {};      // the number of rows of a batch

// ---- inner nodes
template <class Fn, class... X>
struct Map {};  // Fn::apply(x...), element by element; functors.hpp has an alias for each Fn

// One field of a finished reduction, legal where its reduction has been finished: `Reduction` is the
// number of the reduction, which counts all reductions of a program in order of first evaluation.
enum class Field { value, mean, variance, maximum, sumexp, lse };
constexpr Field value = Field::value, mean = Field::mean, variance = Field::variance,
                maximum = Field::maximum, sumexp = Field::sumexp, lse = Field::lse;
template <int Reduction, Field F>
struct Stat {};  // of a RowReduce; in Column expressions of later phases and in the RowTail
template <int Reduction, Field F>
struct GroupStat {};  // of a GroupReduce; in Group expressions of later phases
template <int Reduction, Field F>
struct ColStat {};  // of a ColReduce; in the ColTail, and in expressions of later phases (column_group.hpp)
template <int Reduction, Field F>
struct FullStat {};  // of a FullReduce; in the FullTail

// In a chain: a value a column, of operands, that a CTA computes once, at its start.
template <class Expr>
struct Vector {};

// Values computed once at the start of their phase; `Index` counts the phase's columns, or groups.
template <int Index, class Expr>
struct Column {};  // a value a row
template <int Index, class Expr>
struct Group {};  // a value a row and group of columns

// ---- effects
template <class Expr>
struct Keep {};  // overwrite Product<0>, for later phases
template <int Reduction, class Monoid, class Expr>
struct RowReduce {};  // over the columns of each row
template <int Reduction, class Monoid, int GroupColumns, class Expr>
struct GroupReduce {};  // over each group of neighbouring columns of each row
template <int Reduction, class Monoid, class Expr>
struct ColReduce {};  // over the rows of each column
template <int Reduction, class Monoid, class Expr>
struct FullReduce {};  // over all
template <int Output, class T, class Expr>
struct TileStore {};  // rows of contiguous columns that start at multiples of 16 bytes
template <int Output, class T, class Expr>
struct StridedStore {};  // rows and columns each in two levels of strides
template <int Output, class T, class Expr>
struct ColumnStore {};  // (M,)
template <int Output, class T, class Expr>
struct GroupStore {};  // (M, N / GroupColumns)
template <int Output, class T, class Expr>
struct RowStore {};  // (N,), in the ColTail
template <int Output, class T, class Expr>
struct ScalarStore {};  // (), in the FullTail
template <class Expr>
struct Pass {};  // in a chain, on to the next GEMM as its A
// In a chain, what the middle hands to the program behind beside its tile: a value a row, where the program
// reads the ColumnVector, and sum_h c[h] * W1[n, h], where it reads the RowVector.  Their `Index` is that of
// no operand.
template <class Vector, class Expr>
struct HandRow {};
template <class Vector, class Expr>
struct HandFold {};

// ---- structure
template <class... T>
struct List {
  static constexpr int size = sizeof...(T);
};
template <class... T>
using Tiles = List<T...>;  // tile operands that TMA brings to a phase
template <class... T>
using Columns = List<T...>;  // its values a row
template <class... T>
using Groups = List<T...>;  // its values a row and group
template <class... T>
using Lets = List<T...>;  // its tile values with more than one reader: evaluated once
template <class... T>
using Effects = List<T...>;
template <class... T>
using Operands = List<T...>;  // all tensor operands, in the order of the ABI
template <class... T>
using Vectors = List<T...>;

template <class TilesT, class ColumnsT, class LetsT, class EffectsT, class GroupsT = List<>>
struct Phase {
  using Tiles = TilesT;
  using Columns = ColumnsT;
  using Groups = GroupsT;
  using Lets = LetsT;
  using Effects = EffectsT;
};
// Between a chain's GEMMs, instead of a phase: one that leaves the values x of a block in the accumulators
// and takes their maximum, the first RowReduce; then one that reads, as its only Column, the maximum so far,
// and hands on exponentials of x less that.  Its RowReduces are Sums, in proportion to these.
template <class... L>
struct Concatenate;
template <class Values, class Exponentials>
struct Online {
  using First = Values;
  using Second = Exponentials;
  using Tiles = typename Values::Tiles;
  using Columns = typename Values::Columns;
  using Groups = List<>;
  using Effects = typename Concatenate<typename Values::Effects, typename Exponentials::Effects>::type;
  static_assert(Exponentials::Tiles::size == 0 && Exponentials::Columns::size == 1);
};
template <class ColumnsT, class EffectsT>
struct Handed {  // behind the last block: HandRows and HandFolds; Columns read the reductions of the middle
  using Columns = ColumnsT;
  using Effects = EffectsT;
};
using NothingHanded = Handed<List<>, List<>>;
// What no later work of a tile reads is computed in a tail, by whichever tile is the last to arrive: no tile
// waits for another there.  The ColTail of a program whose phases read ColStats is left to the first row
// block.
template <class ColumnsT, class EffectsT>
struct RowTail {  // of each row block: ColumnStores of values a row
  using Columns = ColumnsT;
  using Effects = EffectsT;
};
template <class EffectsT>
struct ColTail {  // of each column block: RowStores
  using Effects = EffectsT;
};
template <class EffectsT>
struct FullTail {  // of all: ScalarStores
  using Effects = EffectsT;
};
template <class... P>
using Program = List<P...>;  // phases, then at most one tail of each kind

// ---- the plan's constants
struct KMajor {};  // memory is contiguous along K
struct MNMajor {};  // along M of A, N of B
template <class MajorA_, class MajorB_>
struct Majors {
  using MajorA = MajorA_;
  using MajorB = MajorB_;
};
// `Products` GEMMs side by side, all of the same A.
template <class T, int Columns, int Products = 1, class MajorA_ = KMajor, class MajorB_ = KMajor,
          bool Batched = false>
struct Gemm {
  using Element = T;
  using MajorA = MajorA_;
  using MajorB = MajorB_;
  static constexpr int N = Columns, kProducts = Products;
  static constexpr bool kBatched = Batched, kOwnA = false;
  template <int>
  using MajorsOf = Majors<MajorA, MajorB>;
};
// Two GEMMs side by side, each of an A, a B and a K of its own; `First` and `Second`: their Majors.
template <class T, int Columns, class First, class Second, bool Batched = false>
struct TwoGemms {
  using Element = T;
  static constexpr int N = Columns, kProducts = 2;
  static constexpr bool kBatched = Batched, kOwnA = true;
  template <int Product>
  using MajorsOf = std::conditional_t<Product == 0, First, Second>;
};
// A team of warpgroups computes a tile, each its share of the rows.  Teams take the tiles in turn: the
// epilogue of one hides behind the GEMMs of the others.  `N` columns of the output: of each product.
template <int M, int N, int K, int Teams, int WarpgroupsOfTeam>
struct Schedule {
  static constexpr int TileM = M, TileN = N, TileK = K, kTeams = Teams, kTeamSize = WarpgroupsOfTeam;
};
template <int M, int N, int K, int Teams = 2>
using Pingpong = Schedule<M, N, K, Teams, 1>;
template <int M, int N, int K, int Teams = 1>
using Cooperative = Schedule<M, N, K, Teams, 2>;
// CTAs that have M neighbouring row blocks of N neighbouring tiles each, and multicast what they share.
template <int M, int N>
struct Cluster {
  static constexpr int ClusterM = M, ClusterN = N, kSize = M * N;
  static_assert(M == 1 || N == 1, "a part of A or B goes to all CTAs of a cluster");
};
template <int Count>
struct Stages {  // of the ring of K blocks
  static constexpr int value = Count;
};
template <int Count>
struct TileSlots {  // for tile operands, each of 64 rows by 32 columns; one ring for each member of a team
  static constexpr int value = Count;
};

// Of a chain of GEMMs.  Each warpgroup computes tiles of 64 rows from end to end, the columns of the first
// GEMM (the second's K) in blocks.  `Buffers`: results of the first that a warpgroup holds, so many blocks
// ahead of the second.
template <int Warpgroups, int Block, int Buffers>
struct ChainSchedule {
  static constexpr int kWarpgroups = Warpgroups, kBlock = Block, kBuffers = Buffers;
};
// Where the first GEMM's A, `Columns` wide, waits while the blocks pass.  `OperandT`: a tile operand of the
// program behind the last GEMM that is read from these rows where it is the same tensor; void: none is.
template <int Columns, class OperandT = void>
struct RowsInRegisters {
  using Operand = OperandT;
  static constexpr int K = Columns;
  static constexpr bool kInRegisters = true;
};
template <int Columns, class OperandT = void>
struct RowsInShared {
  using Operand = OperandT;
  static constexpr int K = Columns;
  static constexpr bool kInRegisters = false;
};
// Where the blocks of the first and of the later Bs wait: for the CTA's life, or passing through one ring.
struct Resident {
  static constexpr bool kFirst = true, kLater = true;
  static constexpr int kRing = 0;
};
template <int Ring>
struct ResidentFirst {
  static constexpr bool kFirst = true, kLater = false;
  static constexpr int kRing = Ring;
};
template <int Ring>
struct Streamed {
  static constexpr bool kFirst = false, kLater = false;
  static constexpr int kRing = Ring;
};
// A GEMM behind the second one, and the program ahead of it: a phase over whole rows of the GEMM before.
template <class MiddleT, class GemmT>
struct Link {
  using Middle = MiddleT;
  using Gemm = GemmT;
};
template <class... L>
using Further = List<L...>;

}  // namespace comfuse
