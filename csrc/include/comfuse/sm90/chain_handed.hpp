// What the middle of a chain hands to the program behind the second GEMM, beside its tile: values a row, and
// vectors of the middle's columns times W1.  They lie where that program's own vectors do.
#pragma once

#include "comfuse/sm90/access.hpp"
#include "comfuse/sm90/chain_states.hpp"
#include "comfuse/sm90/values.hpp"

namespace comfuse::sm90 {

// The vectors that are handed, in the order of the effects.
template <class>
struct VectorsHanded;
template <class... E>
struct VectorsHanded<List<E...>> : Concatenate<typename VectorsHanded<E>::type...> {};
template <class Vector, class X>
struct VectorsHanded<HandRow<Vector, X>> {
  using type = List<Vector>;
};
template <class Vector, class X>
struct VectorsHanded<HandFold<Vector, X>> {
  using type = List<Vector>;
};

// W1 as it lies in memory, for kernels that fold vectors into it.
struct NoSecondFactor {};
struct SecondFactor {
  CfTensor second;
};

// ---- values a row
template <class Kernel, class StatesT>
struct HandedRow {
  typename Kernel::Params const& params;
  StatesT const& states;
  int row;  // in the matrix
  float values[Kernel::Handed::Columns::size + 1];

  template <int R, Field F>
  CF_DEVICE float read(Stat<R, F>) const {
    return state_of<R>(states).template get<F>(1.f / Kernel::Factors::H);
  }
  template <int I, class T>
  CF_DEVICE float read(ColumnVector<I, T>) const {
    CfTensor const& tensor = params.operands[I];
    return to_float(static_cast<T const*>(tensor.data)[min(row, params.m - 1) * tensor.stride]);
  }
  CF_DEVICE float read(RowIndex) const { return float(row); }
  template <int I, class X>
  CF_DEVICE float read(Column<I, X>) const {
    return values[I];
  }

  template <int... I, class... X>
  CF_DEVICE void evaluate(List<Column<I, X>...>) {
    ((values[I] = evaluate_one(*this, X{})), ...);
  }
  template <class... E>
  CF_DEVICE void store(uint8_t* vectors, int entry, List<E...>) const {
    (store(vectors, entry, E{}), ...);
  }

 private:
  template <class E>
  CF_DEVICE void store(uint8_t*, int, E) const {}
  template <class Vector, class X>
  CF_DEVICE void store(uint8_t* vectors, int entry, HandRow<Vector, X>) const {
    reinterpret_cast<float*>(vectors + Kernel::template vector_offset<Vector>)[entry] =
        evaluate_one(*this, X{});
  }
};

// Each thread hands on the row that it owns.  `row`: the first of the warp's 16 rows in the matrix, `entry`
// in the tile.
template <class Kernel, class StatesT>
CF_DEVICE void hand_rows(typename Kernel::Params const& params, StatesT const& states, uint8_t* vectors,
                         int row, int entry) {
  int const owned = Quad<1>::owned_row();
  HandedRow<Kernel, StatesT> source{params, states, row + owned, {}};
  source.evaluate(typename Kernel::Handed::Columns{});
  __syncwarp();
  if (Quad<1>::owns()) source.store(vectors, entry + owned, typename Kernel::Handed::Effects{});
  __syncwarp();
}

// ---- vectors times W1, a warp for each of its rows
template <class Kernel>
struct Folds {
  using T = typename Kernel::Element;
  static constexpr int H = Kernel::Factors::H, N = Kernel::N, TileN = Kernel::TileN;

  // By all consumers, into each of `buffers` of the program's vectors, `step` bytes apart.
  template <class... E>
  CF_DEVICE static void run(typename Kernel::Params const& params, uint8_t* vectors, int buffers, int step,
                            List<E...>) {
    (run(params, vectors, buffers, step, E{}), ...);
  }

 private:
  template <class E>
  CF_DEVICE static void run(typename Kernel::Params const&, uint8_t*, int, int, E) {}
  template <class Vector, class X>
  CF_DEVICE static void run(typename Kernel::Params const& params, uint8_t* vectors, int buffers, int step,
                            HandFold<Vector, X>) {
    CfTensor const& factor = params.second;
    int const warp = threadIdx.x / 32 - kWarpgroup / 32;
#pragma unroll 1
    for (int n = warp; n < TileN; n += Kernel::kWarpgroups * kWarpgroup / 32) {
      float sum = 0.f;
      T const* row = static_cast<T const*>(factor.data) + min(n, N - 1) * factor.stride;
#pragma unroll 1
      for (int column = 8 * lane_id(); column < H; column += 8 * 32) {
        float weights[8];
        unpack(load_block(row + column), weights);
#pragma unroll
        for (int i = 0; i < 8; ++i)
          sum = fmaf(evaluate_one(ColumnInMemory<Kernel>{params, column + i}, X{}), weights[i], sum);
      }
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(kFullWarp, sum, mask);
      if (lane_id() == 0) {
#pragma unroll
        for (int buffer = 0; buffer < buffers; ++buffer)
          reinterpret_cast<float*>(vectors + buffer * step + Kernel::template vector_offset<Vector>)[n] =
              n < N ? sum : 0.f;
      }
    }
  }
};

}  // namespace comfuse::sm90
