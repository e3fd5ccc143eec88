// Quads trade accumulators, where B could not be permuted on its way to shared memory (mainloop.hpp) and the
// program cannot do with pairs of columns; where it can, packed elements before they are stored.
//
// wgmma gives thread q of a quad columns 8 j + 2 q + e of each 32, j = 0..3, e = 0..1: pairs, spread over
// the 32.  Transposed over j and q it holds columns 8 q + 2 j + e instead: a run of eight, in the same
// registers.  The header compiles for the host, where a test runs it on arrays of lanes.
#pragma once

namespace comfuse::sm90 {

#ifdef __CUDACC__
#define CF_TRANSPOSE __device__ __forceinline__
#else
#define CF_TRANSPOSE inline
#endif

// Threads whose lane differs in bit `kBit` trade: the one with 0 its `second` for the other's `first`.
// Lanes: `Value`, a lane's or many lanes' float; `select(bit, a, b)`, a where the lane has that bit;
// `shuffle_xor(value, mask)`.
template <int kBit, class Lanes>
CF_TRANSPOSE void trade(typename Lanes::Value& first, typename Lanes::Value& second) {
  auto const received = Lanes::shuffle_xor(Lanes::select(kBit, first, second), 1 << kBit);
  first = Lanes::select(kBit, received, first);
  second = Lanes::select(kBit, second, received);
}

// The 16 values of a fragment, v[4 j + 2 half + e]: for each half and e, a 4 x 4 transpose over j and q.
template <class Lanes>
CF_TRANSPOSE void transpose_fragment(typename Lanes::Value* v) {
#ifdef __CUDACC__
#pragma unroll
#endif
  for (int n = 0; n < 4; ++n) {
    trade<0, Lanes>(v[n], v[4 + n]);
    trade<0, Lanes>(v[8 + n], v[12 + n]);
    trade<1, Lanes>(v[n], v[8 + n]);
    trade<1, Lanes>(v[4 + n], v[12 + n]);
  }
}

// The four pairs of a row, w[j], each packed into a word: after one of the two steps w[2 i], w[2 i + 1] are
// four neighbouring columns, from 16 i + first_column_of_joined(q) on.
template <class Lanes>
CF_TRANSPOSE void join_pairs(typename Lanes::Value* w) {
  trade<0, Lanes>(w[0], w[1]);
  trade<0, Lanes>(w[2], w[3]);
}
CF_TRANSPOSE int first_column_of_joined(int q) { return q % 2 * 8 + q / 2 * 4; }

template <class T>
struct WarpLanes;
#ifdef __CUDACC__
template <class T>
struct WarpLanes {
  using Value = T;
  CF_TRANSPOSE static T select(int bit, T a, T b) { return threadIdx.x >> bit & 1 ? a : b; }
  CF_TRANSPOSE static T shuffle_xor(T x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
};

template <int Size>
CF_TRANSPOSE void transpose(float (&accumulators)[Size]) {
#pragma unroll
  for (int n = 0; n < Size; n += 16) transpose_fragment<WarpLanes<float>>(accumulators + n);
}
#endif
#undef CF_TRANSPOSE

}  // namespace comfuse::sm90
