// A plain GEMM on the stock CUTLASS kernel layer, to measure our own kernel layer against.
//
//   d[m, n] = sum_k a[m, k] * b[n, k]      bf16, float32 accumulation
//
// One variant a library, chosen by macros:
//   STOCK_TILE_N        columns of a tile (rows are 128, products 64)
//   STOCK_COOPERATIVE   1: both math warpgroups share a tile, 0: pingpong
//   STOCK_CLUSTER_M, STOCK_CLUSTER_N
#include <cuda_runtime.h>
#include <cutlass/cutlass.h>
#include <cutlass/device_kernel.h>

#include <cstdint>
#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/gemm/kernel/tile_scheduler.hpp>

namespace {

using cute::Int;
using cute::Shape;

using Element = cutlass::bfloat16_t;
using Accumulator = float;
using RowMajor = cutlass::layout::RowMajor;
using ColumnMajor = cutlass::layout::ColumnMajor;
constexpr int kAlignment = 16 / sizeof(Element);

using Tile = Shape<Int<128>, Int<STOCK_TILE_N>, Int<64>>;
using Cluster = Shape<Int<STOCK_CLUSTER_M>, Int<STOCK_CLUSTER_N>, Int<1>>;

#if STOCK_COOPERATIVE
using MainloopSchedule = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
using EpilogueSchedule = cutlass::epilogue::TmaWarpSpecializedCooperative;
#else
using MainloopSchedule = cutlass::gemm::KernelTmaWarpSpecializedPingpong;
using EpilogueSchedule = cutlass::epilogue::TmaWarpSpecialized;
#endif

using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
    cutlass::epilogue::collective::EpilogueTileAuto, Accumulator, Accumulator,
    /*ElementC=*/void, RowMajor, kAlignment, Element, RowMajor, kAlignment, EpilogueSchedule>::CollectiveOp;

using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, RowMajor, kAlignment, Element, ColumnMajor,
    kAlignment, Accumulator, Tile, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
        sizeof(typename Epilogue::SharedStorage))>,
    MainloopSchedule>::CollectiveOp;

using Kernel = cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Mainloop, Epilogue>;

int multiprocessors() {
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 0;
  return count;
}

}  // namespace

// Returns 0, a cudaError_t, or -1 where CUTLASS refuses the problem.
extern "C" __attribute__((visibility("default"))) int stock_gemm_launch(void const* a, void const* b, void* d,
                                                                        int m, int n, int k, void* stream) {
  auto const* kernel = reinterpret_cast<void const*>(&cutlass::device_kernel<Kernel>);

  typename Kernel::Arguments arguments{};
  arguments.mode = cutlass::gemm::GemmUniversalMode::kGemm;
  arguments.problem_shape = {m, n, k, 1};
  constexpr cute::Int<1> one{};
  arguments.mainloop = {static_cast<Element const*>(a), typename Kernel::StrideA{k, one, 0},
                        static_cast<Element const*>(b), typename Kernel::StrideB{k, one, 0}};
  arguments.epilogue = {{/*alpha=*/1.f, /*beta=*/0.f},
                        nullptr,
                        {},
                        static_cast<Element*>(d),
                        typename Kernel::StrideD{n, one, 0}};
  static int const sm_count = multiprocessors();
  arguments.hw_info.sm_count = sm_count;
  arguments.hw_info.max_active_clusters = sm_count / (STOCK_CLUSTER_M * STOCK_CLUSTER_N);
  if (!Kernel::can_implement(arguments)) return -1;

  static cudaError_t const shared_memory = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(Kernel::SharedStorageSize));
  if (shared_memory != cudaSuccess) return shared_memory;

  typename Kernel::Params params = Kernel::to_underlying_arguments(arguments, /*workspace=*/nullptr);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {STOCK_CLUSTER_M, STOCK_CLUSTER_N, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = Kernel::get_grid_shape(params);
  config.blockDim = Kernel::get_block_shape();
  config.dynamicSmemBytes = Kernel::SharedStorageSize;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &cluster;
  config.numAttrs = 1;
  void* kernel_arguments[] = {&params};
  return cudaLaunchKernelExC(&config, kernel, kernel_arguments);
}

// registers, local bytes, shared bytes, stages
extern "C" __attribute__((visibility("default"))) int stock_gemm_info(int32_t* out) {
  cudaFuncAttributes attributes{};
  cudaError_t const error =
      cudaFuncGetAttributes(&attributes, reinterpret_cast<void const*>(&cutlass::device_kernel<Kernel>));
  out[0] = attributes.numRegs;
  out[1] = static_cast<int32_t>(attributes.localSizeBytes);
  out[2] = static_cast<int32_t>(Kernel::SharedStorageSize);
  out[3] = Mainloop::DispatchPolicy::Stages;
  return error;
}
