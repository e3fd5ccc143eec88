// Evaluation of expressions in registers.
//
// The unit is a fragment: 32 columns of the 2 x 8 rows that a wgmma accumulator spreads over a warp.
// A thread holds 16 of its values, v[4 j + 2 half + e]: row 8 half + lane / 4, column 8 q + 2 j + e
// with q = lane % 4, a run of eight columns in each of two rows (B's permutation in mainloop.hpp).
#pragma once

#include "comfuse/functors.hpp"
#include "comfuse/program.hpp"
#include "comfuse/sm90/instructions.hpp"

namespace comfuse::sm90 {

constexpr int kFragmentColumns = 32, kFragmentValues = 16;

struct Fragment {
  float v[kFragmentValues];

  // The i-th of the thread's eight columns.
  CF_DEVICE float& at(int half, int i) { return v[4 * (i / 2) + 2 * half + i % 2]; }
  CF_DEVICE float at(int half, int i) const { return v[4 * (i / 2) + 2 * half + i % 2]; }
};
CF_DEVICE int first_column_of_thread() { return 8 * (lane_id() % 4); }

// What a fragment's expressions can read.  `Kernel` gives the operands' places, `PhaseT` the columns.
template <class Kernel, class PhaseT>
struct FragmentSource {
  Fragment acc;
  uint8_t const* vectors;                          // the tile's part of every vector, in shared memory
  float const (*columns)[2 * Kernel::kFragments];  // [column of the phase][2 i + half]
  float const* scalars;
  uint8_t const* const* tiles;                     // the slots that hold the tile operands' values
  int i;                                           // which 64 rows
  int column;                                      // first column of the fragment in its tile
  int row;                                         // first row of the warp's 16 in a slot

  template <class>
  static constexpr bool binds = false;
  CF_DEVICE FragmentSource const& source() const { return *this; }
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

template <class Env>
CF_DEVICE Fragment read(Env const& env, Acc) {
  return env.source().acc;
}
template <class Env, int Index>
CF_DEVICE Fragment read(Env const& env, Scalar<Index>) {
  return splat(env.source().scalars[Index]);
}
template <class Env, uint32_t Bits>
CF_DEVICE Fragment read(Env const&, Imm<Bits>) {
  return splat(__uint_as_float(Bits));
}

template <class Kernel, class P, int Index, class T>
CF_DEVICE Fragment read(FragmentSource<Kernel, P> const& source, RowVector<Index, T>) {
  auto const* x =
      reinterpret_cast<T const*>(source.vectors + Kernel::template vector_offset<RowVector<Index, T>>);
  constexpr int kBlock = 16 / sizeof(T);
  Fragment f;
#pragma unroll
  for (int i = 0; i < 8; i += kBlock) {
    float block[kBlock];
    load_block(x + source.column + first_column_of_thread() + i, block);
#pragma unroll
    for (int n = 0; n < kBlock; ++n) f.at(0, i + n) = f.at(1, i + n) = block[n];
  }
  return f;
}

template <class Kernel, class P, int Index, class X>
CF_DEVICE Fragment read(FragmentSource<Kernel, P> const& source, Column<Index, X>) {
  float const* c = source.columns[Index] + 2 * source.i;
  Fragment f;
#pragma unroll
  for (int n = 0; n < kFragmentValues; ++n) f.v[n] = c[n / 2 % 2];
  return f;
}

template <class X>
struct Always : std::true_type {};

template <class Kernel, class P, int Index, class T>
CF_DEVICE Fragment read(FragmentSource<Kernel, P> const& source, Tile<Index, T>) {
  // A slot holds 64 rows of 32 columns, plainly: two rows of 16-bit elements fill all banks.
  constexpr int kBlock = 16 / sizeof(T);
  auto const* slot =
      reinterpret_cast<T const*>(source.tiles[index_among<Always, Tile<Index, T>>(typename P::Tiles{})]);
  Fragment f;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    T const* x = slot + (source.row + 8 * half + lane_id() / 4) * kFragmentColumns + first_column_of_thread();
#pragma unroll
    for (int i = 0; i < 8; i += kBlock) {
      float block[kBlock];
      load_block(x + i, block);
#pragma unroll
      for (int n = 0; n < kBlock; ++n) f.at(half, i + n) = block[n];
    }
  }
  return f;
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
