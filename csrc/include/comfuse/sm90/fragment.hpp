// Evaluation of expressions in registers, a fragment at a time (fragment_layout.hpp).
#pragma once

#include "comfuse/functors.hpp"
#include "comfuse/sm90/column_memory.hpp"
#include "comfuse/sm90/fragment_layout.hpp"
#include "comfuse/sm90/strided.hpp"
#include "comfuse/sm90/thread_runs.hpp"
#include "comfuse/sm90/transpose.hpp"

namespace comfuse::sm90 {

// What a phase's expressions can read, and where it lies.  One for each tile and phase; the last members
// say which of its fragments is at hand.
template <class Kernel, class PhaseT>
struct FragmentSource {
  static constexpr int kRows = 2 * Kernel::kFragments;  // a thread's rows of the tile: 2 i + half
  static constexpr bool kPairs = Kernel::kPairs;        // of columns; otherwise runs of eight
  using StridedOperands = typename Filter<IsStridedTile, typename Kernel::OperandList>::type;
  using StridedOutputs = typename Filter<IsStridedStore, typename PhaseT::Effects>::type;
  using TileOutputs = typename Filter<IsTileStore, typename PhaseT::Effects>::type;

  typename Kernel::Params const& params;
  typename Kernel::Item const& item;
  uint8_t const* vectors;          // the tile's part of every vector, in shared memory
  int row;  // first of the warp's 16 rows in the tile; its fragments are 64 rows apart
  float const (*columns)[kRows];  // [column of the phase][2 i + half]
  StridedRows<kRows> operands[StridedOperands::size + 1], outputs[StridedOutputs::size + 1];
  uint8_t* tile_outputs[TileOutputs::size + 1][kRows];  // the thread's first run of each of its rows
  int rows_left, columns_left;  // of the matrix, from the thread's first row and column of the tile on

  int i;  // which 64 rows
  int column;  // first column of the fragment in its tile
  float const (*groups)[kRows];  // [group value of the phase][2 i + half], for the group of these columns
  uint8_t const* const* tiles;  // the slots that hold the tile operands' values
  ThreadRuns const* runs;  // of a tile operand that may be A itself
  ColumnMemory<Kernel> column_states;  // of finished column reductions
  Fragment acc[Kernel::kProducts];

  // `row_`: the first of the warp's 16 rows in the tile.
  CF_DEVICE FragmentSource(typename Kernel::Params const& params_, typename Kernel::Item const& item_,
                           uint8_t const* vectors_, int row_, float const (*columns_)[kRows])
      : params(params_),
        item(item_),
        vectors(vectors_),
        row(row_),
        columns(columns_),
        rows_left(params.m - item.row() - row - lane_id() / 4),
        columns_left(Kernel::N - item.column() - first_column_of_thread()) {
    locate(StridedOperands{}, StridedOutputs{});
    locate(TileOutputs{});
  }

  // Where the thread's run of eight columns of the fragment at hand lies in the matrix.
  CF_DEVICE int first_column() const { return item.column() + column + first_column_of_thread(); }
  // How many of the eight exist: 8 or more, or none or less, or between where N is not a multiple of 8.
  CF_DEVICE int existing_columns() const { return Kernel::kClippedN ? columns_left - column : 8; }
  // Within the batch.
  CF_DEVICE int global_row(int half) const { return item.row() + row + 64 * i + 8 * half + lane_id() / 4; }
  CF_DEVICE bool has_row(int half) const { return 64 * i + 8 * half < rows_left; }

  template <class Leaf>
  CF_DEVICE StridedRows<kRows> const& strided() const {
    if constexpr (IsStridedTile<Leaf>::value)
      return operands[index_among<IsStridedTile, Leaf>(StridedOperands{})];
    else
      return outputs[index_among<IsStridedStore, Leaf>(StridedOutputs{})];
  }

  // In pairs, the first of the columns that the thread stores (store.hpp).
  template <class T>
  CF_DEVICE static int first_column_to_store() {
    if constexpr (!Kernel::kPairs) return first_column_of_thread();
    return sizeof(T) == 2 ? first_column_of_joined(lane_id() % 4) : first_pair_of_thread();
  }
  // Where what a TileStore writes of the fragment at hand begins.
  template <class Store>
  CF_DEVICE auto* run_of(int half) const {
    using T = typename ElementOf<Store>::type;
    return reinterpret_cast<T*>(tile_outputs[index_among<IsTileStore, Store>(TileOutputs{})][2 * i + half]) +
           column;
  }

  template <class>
  static constexpr bool binds = false;
  CF_DEVICE FragmentSource const& source() const { return *this; }

 private:
  template <class... Store>
  CF_DEVICE void locate(List<Store...>) {
    [[maybe_unused]] int output = 0;
    (locate_runs<Store>(tile_outputs[output++]), ...);
  }
  template <class Store>
  CF_DEVICE void locate_runs(uint8_t* (&runs)[kRows]) const {
    using T = typename ElementOf<Store>::type;
    CfTensor const& tensor = params.outputs[ElementOf<Store>::index];
    T* const first =
        static_cast<T*>(tensor.data) + Kernel::batch_of_output(params, ElementOf<Store>::index, item) +
        (item.row() + row + lane_id() / 4) * tensor.stride + item.column() + first_column_to_store<T>();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      runs[r] = reinterpret_cast<uint8_t*>(first + (r / 2 * 64 + r % 2 * 8) * tensor.stride);
      // Where the compiler sees how they came about, it multiplies anew for each fragment.
      asm volatile("" : "+l"(runs[r]));
    }
  }
  template <class... Operand, class... Store>
  CF_DEVICE void locate(List<Operand...>, List<Store...>) {
    [[maybe_unused]] auto const row_of = [&](int r) {
      return item.row() + row + 64 * (r / 2) + 8 * (r % 2) + lane_id() / 4;
    };
    [[maybe_unused]] int operand = 0, output = 0;
    (operands[operand++].template locate<typename ElementOf<Operand>::type, 0>(
         params.operands[ElementOf<Operand>::index],
         Kernel::batch_of_operand(params, ElementOf<Operand>::index, item), params.m, row_of),
     ...);
    (outputs[output++].template locate<typename ElementOf<Store>::type, Kernel::N>(
         params.outputs[ElementOf<Store>::index],
         Kernel::batch_of_output(params, ElementOf<Store>::index, item), params.m, row_of),
     ...);
  }
};

// A scope in which expression X has been evaluated.
template <class X, class Outer>
struct Scope {
  Outer const& outer;
  Fragment value;

  template <class Y>
  static constexpr bool binds = std::is_same<X, Y>::value || Outer::template binds<Y>;
  CF_DEVICE auto const& source() const { return outer.source(); }
  template <class Y>
  CF_DEVICE Fragment const& get() const {
    if constexpr (std::is_same<X, Y>::value)
      return value;
    else
      return outer.template get<Y>();
  }
};

template <class X, class Env>
CF_DEVICE Fragment evaluate(Env const& env);

namespace detail {

CF_DEVICE Fragment splat(float x) {
  Fragment f;
#pragma unroll
  for (int n = 0; n < kFragmentValues; ++n) f.v[n] = x;
  return f;
}
// A value for each of the thread's rows.
CF_DEVICE Fragment splat_rows(float first, float second) {
  Fragment f;
#pragma unroll
  for (int n = 0; n < kFragmentValues; ++n) f.v[n] = n / 2 % 2 == 0 ? first : second;
  return f;
}

template <class Source, int P>
CF_DEVICE Fragment read(Source const& source, Product<P>) {
  return source.acc[P];
}
template <class Source, int Index>
CF_DEVICE Fragment read(Source const& source, Scalar<Index>) {
  return splat(source.params.scalars[Index]);
}
template <class Source, uint32_t Bits>
CF_DEVICE Fragment read(Source const&, Imm<Bits>) {
  return splat(__uint_as_float(Bits));
}
template <class Source>
CF_DEVICE Fragment read(Source const& source, RowCount) {
  return splat(float(source.params.m));
}
template <class Source>
CF_DEVICE Fragment read(Source const& source, RowIndex) {
  return splat_rows(float(source.global_row(0)), float(source.global_row(1)));
}
template <class Source>
CF_DEVICE Fragment read(Source const& source, ColumnIndex) {
  if constexpr (Source::kPairs) {
    return numbers_of_pairs(source.item.column() + source.column);
  } else {
    Fragment f;
#pragma unroll
    for (int i = 0; i < 8; ++i) f.at(0, i) = f.at(1, i) = float(source.first_column() + i);
    return f;
  }
}
template <class Source, int Index, class X>
CF_DEVICE Fragment read(Source const& source, Column<Index, X>) {
  float const* c = source.columns[Index] + 2 * source.i;
  return splat_rows(c[0], c[1]);
}
template <class Source, int Index, class X>
CF_DEVICE Fragment read(Source const& source, Group<Index, X>) {
  float const* g = source.groups[Index] + 2 * source.i;
  return splat_rows(g[0], g[1]);
}

template <class V, class Kernel, class P>
CF_DEVICE Fragment vector_of(FragmentSource<Kernel, P> const& source) {
  auto const* x = reinterpret_cast<typename ElementOf<V>::type const*>(source.vectors +
                                                                       Kernel::template vector_offset<V>);
  if constexpr (Kernel::kPairs) {
    return pairs_of_vector(x + source.column);
  } else {
    float run[8];
    unpack(load_block(x + source.column + first_column_of_thread()), run);
    Fragment f;
#pragma unroll
    for (int i = 0; i < 8; ++i) f.at(0, i) = f.at(1, i) = run[i];
    return f;
  }
}

template <class Kernel, class P, int Index, class T>
CF_DEVICE Fragment read(FragmentSource<Kernel, P> const& source, RowVector<Index, T>) {
  return vector_of<RowVector<Index, T>>(source);
}
template <class Kernel, class P, class X>
CF_DEVICE Fragment read(FragmentSource<Kernel, P> const& source, Vector<X>) {
  return vector_of<Vector<X>>(source);
}

template <class Kernel, class P, int R, Field F>
CF_DEVICE Fragment read(FragmentSource<Kernel, P> const& source, ColStat<R, F>) {
  static_assert(!Kernel::kPairs);
  float run[8];
  source.column_states.template read<R, F>(run, source.column + first_column_of_thread(),
                                           1.f / source.params.m);
  Fragment f;
#pragma unroll
  for (int i = 0; i < 8; ++i) f.at(0, i) = f.at(1, i) = run[i];
  return f;
}

template <class X>
struct Always : std::true_type {};

template <class Kernel, class P, int Index, class T>
CF_DEVICE Fragment read(FragmentSource<Kernel, P> const& source, Tile<Index, T>) {
  if constexpr (Kernel::template kMayBeRows<Tile<Index, T>>) {
    Block<T> const blocks[2] = {source.runs->template load<T>(source.column, 0),
                                source.runs->template load<T>(source.column, 1)};
    return unpack_halves_of_fragment(blocks);
  }
  uint8_t const* const slot = source.tiles[index_among<Always, Tile<Index, T>>(typename P::Tiles{})];
  uint32_t const row = source.row % 64u;
  if constexpr (Kernel::kPairs) return pairs_of_slot<T>(slot, row);
  // Two rows of 16-bit elements fill all banks.
  T const* x =
      reinterpret_cast<T const*>(slot) + (row + lane_id() / 4) * kFragmentColumns + first_column_of_thread();
  Block<T> const blocks[2] = {load_block(x), load_block(x + 8 * kFragmentColumns)};
  return unpack_halves_of_fragment(blocks);
}

template <class Kernel, class P, int Index, class T>
CF_DEVICE Fragment read(FragmentSource<Kernel, P> const& source, StridedTile<Index, T>) {
  auto const& rows = source.template strided<StridedTile<Index, T>>();
  int const count = source.existing_columns();
  Block<T> blocks[2] = {};
  if (rows.blocks && (Kernel::N % 8 == 0 || count >= 8)) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      load_block_if(count > 0 && source.has_row(half),
                    rows.template row<T>(2 * source.i + half) + source.first_column(), blocks[half]);
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        load_element_if(i < count && source.has_row(half),
                        rows.template row<T>(2 * source.i + half) + source.first_column() + i, blocks[half],
                        i);
    }
  }
  return unpack_halves_of_fragment(blocks);
}

template <class Fn, class... F>
CF_DEVICE Fragment map(F const&... x) {
  Fragment f;
#pragma unroll
  for (int n = 0; n < kFragmentValues; ++n) f.v[n] = Fn::apply(x.v[n]...);
  return f;
}

// Leaves read the source itself; inner nodes look their inputs up in the scope first.
template <class Env, class X>
CF_DEVICE Fragment compute(Env const& env, X leaf) {
  return read(env.source(), leaf);
}
template <class Env, class Fn, class... X>
CF_DEVICE Fragment compute(Env const& env, Map<Fn, X...>) {
  return map<Fn>(evaluate<X>(env)...);
}

}  // namespace detail

template <class X, class Env>
CF_DEVICE Fragment evaluate(Env const& env) {
  if constexpr (Env::template binds<X>)
    return env.template get<X>();
  else
    return detail::compute(env, X{});
}

// Calls `body` in a scope that has the values of all Lets.
template <class Env, class Body>
CF_DEVICE void with_lets(Env const& env, List<>, Body&& body) {
  body(env);
}
template <class Env, class Body, class X, class... Rest>
CF_DEVICE void with_lets(Env const& env, List<X, Rest...>, Body&& body) {
  Scope<X, Env> scope{env, detail::compute(env, X{})};
  with_lets(scope, List<Rest...>{}, static_cast<Body&&>(body));
}

}  // namespace comfuse::sm90
