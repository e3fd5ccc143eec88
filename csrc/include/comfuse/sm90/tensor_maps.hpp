// The host's side of TMA: tensor maps of the factors and of the tile operands.
#pragma once

#include <cuda_runtime.h>

#include "comfuse/abi.h"
#include "comfuse/sm90/mainloop.hpp"

namespace comfuse::sm90 {

// The driver's encoder, found at run time so that a kernel library loads where there is no driver.
inline decltype(&cuTensorMapEncodeTiled) tensor_map_encoder() {
  static auto const encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                     cudaEnableDefault, &found);
    return e == cudaSuccess ? reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function) : nullptr;
  }();
  return encoder;
}

// TMA copies bits and fills with zeros: only the size of an element matters.
template <class T>
constexpr CUtensorMapDataType tensor_map_type() {
  return sizeof(T) == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
         : sizeof(T) == 2 ? CU_TENSOR_MAP_DATA_TYPE_UINT16
         : sizeof(T) == 4 ? CU_TENSOR_MAP_DATA_TYPE_UINT32
                          : CU_TENSOR_MAP_DATA_TYPE_UINT64;
}

template <class T, int Rank>
bool encode(CUtensorMap* map, void* data, cuuint64_t const (&sizes)[Rank],
            cuuint64_t const (&strides)[Rank - 1], cuuint32_t const (&box)[Rank],
            CUtensorMapSwizzle swizzle) {
  cuuint32_t steps[Rank];
  for (auto& step : steps) step = 1;
  return tensor_map_encoder()(map, tensor_map_type<T>(), Rank, data, sizes, strides, box, steps,
                              CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Rows of contiguous columns, read in boxes of `box_rows` by `box_columns`; `steps`: which matrix is a
// batch's.
template <class T, bool Batched>
bool encode_matrix(CUtensorMap* map, BatchSteps<int>* steps, CfTensor const& tensor, int64_t batches,
                   int64_t rows, int64_t columns, int box_rows, int box_columns, CUtensorMapSwizzle swizzle) {
  auto const sized = [](int64_t x) { return cuuint64_t(x); };
  cuuint64_t const row = tensor.stride * sizeof(T);
  cuuint32_t const box[] = {cuuint32_t(box_columns), cuuint32_t(box_rows), 1};
  if constexpr (Batched) {
    Matrices const matrices(tensor, batches);
    *steps = matrices.steps;
    return matrices.are_countable() &&
           encode<T, 3>(map, tensor.data, {sized(columns), sized(rows), sized(matrices.count)},
                        {row, matrices.stride > 0 ? matrices.stride * sizeof(T) : row}, {box[0], box[1], 1},
                        swizzle);
  } else {
    return encode<T, 2>(map, tensor.data, {sized(columns), sized(rows)}, {row}, {box[0], box[1]}, swizzle);
  }
}

// A factor, `rows` by `k` whichever is contiguous, in boxes of `box_rows` by a K block.
template <class T, bool MNMajor, bool Batched>
bool encode_factor(CUtensorMap* map, BatchSteps<int>* steps, CfTensor const& tensor, int64_t batches,
                   int64_t rows, int64_t k, int box_rows) {
  constexpr int kBlock = kLineBytes / sizeof(T);
  if constexpr (MNMajor)
    return encode_matrix<T, Batched>(map, steps, tensor, batches, k, rows, kBlock, kRowsOfBlock,
                                     CU_TENSOR_MAP_SWIZZLE_128B);
  else
    return encode_matrix<T, Batched>(map, steps, tensor, batches, rows, k, box_rows, kBlock,
                                     CU_TENSOR_MAP_SWIZZLE_128B);
}

// B's rows from `first` on, in groups of 32 whose rows mainloop.hpp permutes; `runs` of the four runs of
// eight rows exist in each group.
template <class T>
bool encode_permuted(CUtensorMap* map, CfTensor const& b, int64_t first, int runs, int64_t groups, int64_t k,
                     int groups_of_box) {
  cuuint64_t const row = b.stride * sizeof(T);
  return encode<T, 5>(
      map, static_cast<char*>(b.data) + first * row,
      {cuuint64_t(k), 2, cuuint64_t(runs), 4, cuuint64_t(groups)}, {row, 8 * row, 2 * row, 32 * row},
      {kLineBytes / sizeof(T), 2, 4, 4, cuuint32_t(groups_of_box)}, CU_TENSOR_MAP_SWIZZLE_128B);
}

// The maps that a pass of Mainloop::load reads: of an A (M, k), and of the B of each of its products.
template <class Main, int Pass>
bool encode_pass(typename Main::Maps* maps, CfArgs const& args, CfTensor const& a, int64_t k) {
  using T = typename Main::T;
  bool ok = encode_factor<T, Main::template kMNMajorA<Pass>, Main::kBatched>(
      &maps->a[Pass], &maps->a_batches[Pass], a, args.batches, args.m, k, Main::PartA::kRows);
  for (int p = Pass; p < Pass + Main::kProductsOfPass; ++p) {
    CfTensor const& b = args.b[p];
    if constexpr (Main::kPermutedB) {
      constexpr int kGroups = Main::N / 32, kRest = Main::kPartialColumns;
      if (kGroups > 0) ok = ok && encode_permuted<T>(&maps->b[p], b, 0, 4, kGroups, k, Main::kGroupsOfBox);
      if (kRest > 0) ok = ok && encode_permuted<T>(&maps->b_partial[p], b, kGroups * 32, kRest / 8, 1, k, 1);
      if (kGroups == 0) maps->b[p] = maps->b_partial[p];  // read beyond its one group only, for zeros
    } else {
      ok = ok && encode_factor<T, Main::template kMNMajorB<Pass>, Main::kBatched>(
                     &maps->b[p], &maps->b_batches[p], b, args.batches, Main::N, k, Main::PartB::kRows);
    }
  }
  return ok;
}

// How a launch's factors become a kernel's parameters; a kernel without a Mainloop has its own.
template <class Kernel>
struct FactorMaps {
  using Main = typename Kernel::Main;

  // Beyond what holds for all kernels.
  static bool accepts(CfArgs const& args) {
    return !Kernel::kOwnA || (args.k1 > 0 && args.k1 < INT32_MAX / 2 - args.k);
  }
  static bool encode(typename Kernel::Params& params, CfArgs const& args) {
    bool ok = encode_pass<Main, 0>(&params.gemm, args, args.a, args.k);
    params.k_blocks[0] = blocks(args.k);
    if constexpr (Kernel::kOwnA) {
      ok = ok && encode_pass<Main, 1>(&params.gemm, args, args.a1, args.k1);
      params.k_blocks[1] = blocks(args.k1);
    }
    return ok;
  }

 private:
  static int blocks(int64_t k) { return (int(k) + Kernel::TileK - 1) / Kernel::TileK; }
};

}  // namespace comfuse::sm90
