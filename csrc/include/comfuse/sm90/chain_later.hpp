// The factors of a chain behind the first: of its second GEMM, and of further ones.
//
// A block is 64 k's of all rows.  They are read as they are, but the rows of the last factor are permuted as
// mainloop.hpp says, for the sake of the program behind; as there, not where it is N-major or the chain is
// batched.  What other GEMMs give is the next one's A, whose layout is that of accumulators as they are.
#pragma once

#include <cuda.h>

#include "comfuse/program_parts.hpp"
#include "comfuse/sm90/batches.hpp"
#include "comfuse/sm90/instructions.hpp"
#include "comfuse/sm90/shared_layout.hpp"

namespace comfuse::sm90 {

struct LaterMaps {
  CUtensorMap all, partial;
  BatchSteps<int> batches;  // which matrix of `all` is a batch's
};

// `Columns`: K, the N of the GEMM before.  `IsLast`: of the chain.
template <class GemmT, int Columns, bool IsLast>
struct LaterFactor {
  using T = typename GemmT::Element;
  using Major = typename GemmT::MajorB;
  static constexpr int K = Columns, N = GemmT::N, TileN = (N + 63) / 64 * 64;
  static constexpr int kBlocks = (K + 63) / 64, kBlockBytes = TileN * kLineBytes;
  static constexpr bool kBatched = GemmT::kBatched, kMNMajor = std::is_same<Major, MNMajor>::value,
                        kPermuted = IsLast && !kMNMajor && !kBatched;
  static_assert(N % 8 == 0 && TileN <= 256 && GemmT::kProducts == 1);

  // The last 32 of the rows may be 8, 16 or 24: a tensor map of their own says so.
  static constexpr int kPartialColumns = kPermuted ? N % 32 : 0;
  static constexpr int kGroupsOfBox = kPartialColumns == 0 ? TileN / 32 : 1;

  // `batch`: counted in matrices.
  template <CacheHint kHint>
  CF_DEVICE static void load(LaterMaps const& maps, uint64_t* full, uint8_t* to, int block, int batch) {
    Barrier::arrive_and_expect_tx(full, kBlockBytes);
    if constexpr (kPermuted) {
#pragma unroll
      for (int group = 0; group < TileN / 32; group += kGroupsOfBox) {
        bool const partial = kPartialColumns != 0 && group == N / 32;
        tma_load(partial ? maps.partial : maps.all, full, kHint, to + group * 32 * kLineBytes, block * 64, 0,
                 0, 0, partial ? 0 : group);
      }
    } else if constexpr (kMNMajor) {
#pragma unroll
      for (int n = 0; n < TileN; n += kRowsOfBlock)
        load_plain<kHint>(maps, full, to + n * kLineBytes, n, block * 64, batch);
    } else {
      load_plain<kHint>(maps, full, to, block * 64, 0, batch);
    }
  }

 private:
  // A box as it is.
  template <CacheHint kHint>
  CF_DEVICE static void load_plain(LaterMaps const& maps, uint64_t* full, uint8_t* to, int inner, int outer,
                                   int batch) {
    if constexpr (kBatched)
      tma_load(maps.all, full, kHint, to, inner, outer, batch);
    else
      tma_load(maps.all, full, kHint, to, inner, outer);
  }
};

// Those of a chain, in the order of its GEMMs.  `K`: the first one's.
template <int K, class GemmT, class FurtherT>
struct LaterFactors;
template <int K, class GemmT>
struct LaterFactors<K, GemmT, List<>> {
  using type = List<LaterFactor<GemmT, K, true>>;
};
template <int K, class GemmT, class LinkT, class... Rest>
struct LaterFactors<K, GemmT, List<LinkT, Rest...>>
    : Concatenate<List<LaterFactor<GemmT, K, false>>,
                  typename LaterFactors<GemmT::N, typename LinkT::Gemm, List<Rest...>>::type> {};

// The first `Size` of some values.
template <int Size, int Held>
CF_DEVICE float (&first_of(float (&values)[Held])) [Size] {
  static_assert(Size <= Held);
  return reinterpret_cast<float (&)[Size]>(values);
}

// Columns of the widest tile among them.
template <class... F>
constexpr int widest_of_later(List<F...>) {
  int columns = 0;
  ((columns = F::TileN > columns ? F::TileN : columns), ...);
  return columns;
}
// Blocks and bytes of the first `count` of them; of the largest block.
template <class... F>
constexpr int blocks_of_later(int count, List<F...>) {
  int blocks = 0, factor = 0;
  ((blocks += factor++ < count ? F::kBlocks : 0), ...);
  return blocks;
}
template <class... F>
constexpr int bytes_of_later(int count, List<F...>) {
  int bytes = 0, factor = 0;
  ((bytes += factor++ < count ? F::kBlocks * F::kBlockBytes : 0), ...);
  return bytes;
}
template <class... F>
constexpr int largest_of_later(List<F...>) {
  int bytes = 0;
  ((bytes = F::kBlockBytes > bytes ? F::kBlockBytes : bytes), ...);
  return bytes;
}

}  // namespace comfuse::sm90
