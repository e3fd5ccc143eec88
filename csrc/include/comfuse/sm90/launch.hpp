// The host side of one kernel: checks, TMA descriptors, grid, launch.  Implements abi.h.
#pragma once

#include <cuda_runtime.h>

#include <atomic>

#include "comfuse/sm90/kernel.hpp"

namespace comfuse::sm90 {

template <class T>
constexpr CUtensorMapDataType tensor_map_type() {
  return std::is_same<T, bf16>::value   ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
         : std::is_same<T, fp16>::value ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                        : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
}

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

// A row-major matrix, read in boxes of `box_rows` rows by `box_columns` columns.
template <class T>
bool encode_matrix(CUtensorMap* map, CfTensor const& tensor, int64_t rows, int64_t columns, int box_rows,
                   int box_columns, CUtensorMapSwizzle swizzle) {
  return encode<T, 2>(map, tensor.data, {cuuint64_t(columns), cuuint64_t(rows)}, {tensor.stride * sizeof(T)},
                      {cuuint32_t(box_columns), cuuint32_t(box_rows)}, swizzle);
}

// B's rows from `first` on, in groups of 32 whose rows mainloop.hpp permutes; `runs` of the four runs of
// eight rows exist in each group.
template <class T>
bool encode_permuted(CUtensorMap* map, CfTensor const& b, int64_t first, int runs, int64_t groups, int64_t k,
                     int groups_of_box) {
  cuuint64_t const row = b.stride * sizeof(T);
  return encode<T, 5>(map, static_cast<char*>(b.data) + first * row,
                      {cuuint64_t(k), 2, cuuint64_t(runs), 4, cuuint64_t(groups)},
                      {row, 8 * row, 2 * row, 32 * row},
                      {128 / sizeof(T), 2, 4, 4, cuuint32_t(groups_of_box)}, CU_TENSOR_MAP_SWIZZLE_128B);
}

template <class Kernel, void (*kFunction)(typename Kernel::Params)>
class Launcher {
  using Params = typename Kernel::Params;
  static constexpr int kMaxDevices = 64;

 public:
  static int launch(CfArgs const* args, void* workspace, void* stream) {
    if (args->abi_version != CF_ABI_VERSION) return CF_ERROR_ABI;
    if (args->m <= 0 || args->m > INT32_MAX - Kernel::TileM || args->k <= 0 ||
        args->k > INT32_MAX - Kernel::TileK)
      return CF_ERROR_ARGUMENT;
    if (Kernel::kExchanges && workspace == nullptr) return CF_ERROR_ARGUMENT;
    if (!is_aligned(args->a, sizeof(typename Kernel::Element)) ||
        !is_aligned(args->b, sizeof(typename Kernel::Element)) ||
        !phases_aligned(*args, typename Kernel::Program{}))
      return CF_ERROR_ARGUMENT;
    int device, clusters;
    if (cudaError_t e = cudaGetDevice(&device)) return e;
    if (int e = resident_clusters(device, &clusters)) return e;

    Params params;
    params.m = int(args->m);
    params.row_blocks = (params.m + Kernel::TileM - 1) / Kernel::TileM;
    params.k_blocks = (int(args->k) + Kernel::TileK - 1) / Kernel::TileK;
    params.parity_counter = static_cast<uint32_t*>(workspace);
    params.words = reinterpret_cast<uint64_t*>(static_cast<char*>(workspace) + Kernel::kCounterBytes);
    for (int i = 0; i < Kernel::OperandList::size; ++i) params.operands[i] = args->operands[i];
    for (int i = 0; i < CF_MAX_OUTPUTS; ++i) params.outputs[i] = args->outputs[i];
    for (int i = 0; i < CF_MAX_SCALARS; ++i) params.scalars[i] = args->scalars[i];
    if (tensor_map_encoder() == nullptr) return CF_ERROR_DRIVER;
    using Element = typename Kernel::Element;
    using Main = typename Kernel::Main;
    constexpr int kGroups = Kernel::N / 32, kRest = Main::kPartialColumns;
    auto& maps = params.gemm;
    bool ok = encode_matrix<Element>(&maps.a, args->a, args->m, args->k, Main::kRowsA, Kernel::TileK,
                                     CU_TENSOR_MAP_SWIZZLE_128B) &&
              encode_tiles(params, *args, typename Kernel::OperandList{});
    if (kGroups > 0)
      ok = ok && encode_permuted<Element>(&maps.b, args->b, 0, 4, kGroups, args->k, Main::kGroupsOfBox);
    if (kRest > 0)
      ok = ok && encode_permuted<Element>(&maps.b_partial, args->b, kGroups * 32, kRest / 8, 1, args->k, 1);
    if (kGroups == 0) maps.b = maps.b_partial;  // read beyond its one group only, for zeros
    if (!ok) return CF_ERROR_TENSOR_MAP;

    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config = configuration(attributes, grid(params.row_blocks, clusters));
    config.stream = static_cast<cudaStream_t>(stream);
    void* arguments[] = {&params};
    return cudaLaunchKernelExC(&config, reinterpret_cast<void const*>(kFunction), arguments);
  }

  static int64_t workspace_bytes(int64_t m) {
    if (!Kernel::kExchanges) return 0;
    int64_t const row_blocks = (m + Kernel::TileM - 1) / Kernel::TileM;
    return Kernel::kCounterBytes +
           Kernel::kReductions * row_blocks * Kernel::kWordsPerRowBlock * int64_t(sizeof(uint64_t));
  }

  static int info(CfInfo* out) {
    cudaFuncAttributes attributes;
    if (cudaError_t e = cudaFuncGetAttributes(&attributes, reinterpret_cast<void const*>(kFunction)))
      return e;
    int device, clusters;
    if (cudaError_t e = cudaGetDevice(&device)) return e;
    if (int e = resident_clusters(device, &clusters)) return e;
    *out = {CF_ABI_VERSION,       attributes.numRegs, int32_t(attributes.localSizeBytes),
            Kernel::kSharedBytes, clusters,           Kernel::kThreads};
    return 0;
  }

 private:
  // Rows that are read by TMA or written 16 bytes at a time.
  static bool is_aligned(CfTensor const& t, size_t element) {
    return (reinterpret_cast<uintptr_t>(t.data) | uintptr_t(t.stride) * element) % 16 == 0;
  }
  template <class... P>
  static bool phases_aligned(CfArgs const& args, List<P...>) {
    return (true && ... &&
            (leaves_aligned(args, typename P::Tiles{}) && leaves_aligned(args, typename P::Effects{})));
  }
  template <class... X>
  static bool leaves_aligned(CfArgs const& args, List<X...>) {
    return (true && ... && leaf_aligned(args, X{}));
  }
  template <class X>
  static bool leaf_aligned(CfArgs const&, X) {
    return true;
  }
  template <int Index, class T>
  static bool leaf_aligned(CfArgs const& args, Tile<Index, T>) {
    return is_aligned(args.operands[Index], sizeof(T));
  }
  template <int Output, class T, class X>
  static bool leaf_aligned(CfArgs const& args, TileStore<Output, T, X>) {
    return is_aligned(args.outputs[Output], sizeof(T));
  }

  static cudaLaunchConfig_t configuration(cudaLaunchAttribute* attributes, int clusters) {
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {Kernel::ClusterN, 1, 1};
    attributes[1].id = cudaLaunchAttributeCooperative;
    attributes[1].val.cooperative = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(clusters * Kernel::ClusterN);
    config.blockDim = dim3(Kernel::kThreads);
    config.dynamicSmemBytes = Kernel::kSharedBytes;
    config.attrs = attributes;
    config.numAttrs = Kernel::kExchanges ? 2 : 1;  // only CTAs that wait for each other must be co-resident
    return config;
  }

  // How many clusters the device holds at once; asked once a device.
  static int resident_clusters(int device, int* clusters) {
    static std::atomic<int> known[kMaxDevices];
    if (device >= kMaxDevices) return CF_ERROR_ARGUMENT;
    *clusters = known[device].load(std::memory_order_relaxed);
    if (*clusters > 0) return 0;
    auto* function = reinterpret_cast<void const*>(kFunction);
    if (cudaError_t e =
            cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, Kernel::kSharedBytes))
      return e;
    int processors;
    if (cudaError_t e = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) return e;
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config = configuration(attributes, processors / Kernel::ClusterN);
    config.numAttrs = 1;
    if (cudaError_t e = cudaOccupancyMaxActiveClusters(clusters, function, &config)) return e;
    if (Kernel::kExchanges && *clusters < Kernel::Scheduler::kClustersN) return CF_ERROR_RESIDENCY;
    if (*clusters <= 0) return CF_ERROR_RESIDENCY;
    known[device].store(*clusters, std::memory_order_relaxed);
    return 0;
  }

  // A grid of whole row blocks keeps a row block within one wave; taken if it costs no further wave.
  static int grid(int row_blocks, int clusters) {
    int const per_block = Kernel::Scheduler::kClustersN, items = row_blocks * per_block;
    if (items <= clusters) return items;
    int const aligned = clusters / per_block * per_block;
    auto waves = [&](int g) { return (items + g - 1) / g; };
    return aligned > 0 && waves(aligned) == waves(clusters) ? aligned : clusters;
  }

  template <class... Operand>
  static bool encode_tiles(Params& params, CfArgs const& args, List<Operand...>) {
    return (true && ... && encode_tile(params, args, Operand{}));
  }
  template <class Operand>
  static bool encode_tile(Params& params, CfArgs const& args, Operand) {
    if constexpr (IsTile<Operand>::value)
      return encode_matrix<typename ElementOf<Operand>::type>(
          &params.tiles[index_among<IsTile, Operand>(typename Kernel::OperandList{})],
          args.operands[ElementOf<Operand>::index], args.m, Kernel::N, 64, kFragmentColumns,
          CU_TENSOR_MAP_SWIZZLE_NONE);
    return true;
  }
};

}  // namespace comfuse::sm90

#define CF_API extern "C" __attribute__((visibility("default")))

// The kernel under its stem, which is the name a profiler shows, and the functions of abi.h.
#define COMFUSE_EXPORT(STEM, KERNEL)                                               \
  extern "C" __global__ void __launch_bounds__(KERNEL::kThreads, 1)                \
      STEM(const __grid_constant__ KERNEL::Params params) {                        \
    KERNEL::run(params);                                                           \
  }                                                                                \
  CF_API int cf_launch_##STEM(CfArgs const* args, void* workspace, void* stream) { \
    return comfuse::sm90::Launcher<KERNEL, STEM>::launch(args, workspace, stream); \
  }                                                                                \
  CF_API int64_t cf_workspace_##STEM(int64_t m) {                                  \
    return comfuse::sm90::Launcher<KERNEL, STEM>::workspace_bytes(m);              \
  }                                                                                \
  CF_API int cf_info_##STEM(CfInfo* out) { return comfuse::sm90::Launcher<KERNEL, STEM>::info(out); }
