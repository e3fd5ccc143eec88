// The host side of one kernel: checks, parameters, grid, launch.  Implements abi.h.
#pragma once

#include <cuda_runtime.h>

#include <atomic>

#include "comfuse/sm90/kernel.hpp"
#include "comfuse/sm90/tensor_maps.hpp"

namespace comfuse::sm90 {

template <class Kernel, void (*kFunction)(typename Kernel::Params)>
class Launcher {
  using Params = typename Kernel::Params;
  using Layout = WorkspaceLayout<Kernel>;
  static constexpr int kMaxDevices = 64;

 public:
  static int launch(CfArgs const* args, void* workspace, void* stream) {
    if (args->abi_version != CF_ABI_VERSION) return CF_ERROR_ABI;
    if (!has_legal_sizes(*args) || !factors_aligned(*args) ||
        !phases_aligned(*args, typename Kernel::Phases{}))
      return CF_ERROR_ARGUMENT;
    if (!Layout::kIsEmpty && workspace == nullptr) return CF_ERROR_ARGUMENT;
    int device, clusters;
    if (cudaError_t e = cudaGetDevice(&device)) return e;
    if (int e = resident_clusters(device, &clusters)) return e;
    if (Layout::kHasColumnGroup && Kernel::Scheduler::items_of(int(blocks_of(args->m))) > clusters)
      return CF_ERROR_RESIDENCY;
    if (tensor_map_encoder() == nullptr) return CF_ERROR_DRIVER;

    Params params;
    params.m = int(args->m);
    params.row_blocks = int(args->batches * blocks_of(args->m));
    params.blocks_of_batch = Divisor::of(uint32_t(blocks_of(args->m)));
    Layout::place(&params.workspace, workspace, params.row_blocks);
    for (int i = 0; i < Kernel::OperandList::size; ++i) {
      params.operands[i] = args->operands[i];
      if constexpr (Kernel::kBatched)
        params.operand_batches[i] = batch_steps(args->operands[i], args->batches);
    }
    for (int i = 0; i < Kernel::kOutputs; ++i) params.outputs[i] = args->outputs[i];
    for (int i = 0; i < CF_MAX_SCALARS; ++i) params.scalars[i] = args->scalars[i];
    if (!FactorMaps<Kernel>::encode(params, *args) ||
        !encode_tiles(params, *args, typename Kernel::OperandList{}))
      return CF_ERROR_TENSOR_MAP;

    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config = configuration(attributes, grid(params.row_blocks, clusters));
    config.stream = static_cast<cudaStream_t>(stream);
    void* arguments[] = {&params};
    return cudaLaunchKernelExC(&config, reinterpret_cast<void const*>(kFunction), arguments);
  }

  static int64_t workspace_bytes(int64_t m, int64_t batches) { return Layout::bytes(batches * blocks_of(m)); }

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
  static int64_t blocks_of(int64_t m) { return (m + Kernel::TileM - 1) / Kernel::TileM; }

  // What the kernel's integers can count; items are counted one lap of the grid past their end.
  static bool has_legal_sizes(CfArgs const& args) {
    constexpr int64_t kLimit = INT32_MAX / 2;
    return args.m > 0 && args.m < kLimit && args.k > 0 && args.k < kLimit &&
           FactorMaps<Kernel>::accepts(args) && args.batches > 0 &&
           args.batches <= (Kernel::kBatched ? kLimit : 1) &&
           blocks_of(args.m) * args.batches < kLimit / Kernel::Scheduler::kClustersN;
  }

  // All rows start at multiples of `bytes`: 16 where TMA reads them.
  static bool is_aligned(CfTensor const& t, size_t element, size_t bytes = 16) {
    uintptr_t strides = uintptr_t(t.stride);
    if (Kernel::kBatched) strides |= uintptr_t(t.batch_stride) | uintptr_t(t.batch_outer);
    return (reinterpret_cast<uintptr_t>(t.data) | strides * element) % bytes == 0;
  }
  static bool factors_aligned(CfArgs const& args) {
    constexpr size_t kElement = sizeof(typename Kernel::Element);
    bool aligned = is_aligned(args.a, kElement) && (!Kernel::kOwnA || is_aligned(args.a1, kElement));
    for (int i = 0; i < Kernel::kFactorsB; ++i) aligned = aligned && is_aligned(args.b[i], kElement);
    return aligned;
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
    return is_aligned(args.outputs[Output], sizeof(T), sizeof(T) == 1 ? 8 : 16);  // runs of eight columns
  }

  static cudaLaunchConfig_t configuration(cudaLaunchAttribute* attributes, int clusters) {
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {Kernel::ClusterShape::kSize, 1, 1};
    attributes[1].id = cudaLaunchAttributeCooperative;
    attributes[1].val.cooperative = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(clusters * Kernel::ClusterShape::kSize);
    config.blockDim = dim3(Kernel::kThreads);
    config.dynamicSmemBytes = Kernel::kSharedBytes;
    config.attrs = attributes;
    config.numAttrs = Layout::kExchanges ? 2 : 1;  // only CTAs that wait for each other must be co-resident
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
    cudaLaunchConfig_t config = configuration(attributes, processors / Kernel::ClusterShape::kSize);
    config.numAttrs = 1;
    if (cudaError_t e = cudaOccupancyMaxActiveClusters(clusters, function, &config)) return e;
    if (Layout::kHasRowGroup && *clusters < Kernel::Scheduler::kClustersN) return CF_ERROR_RESIDENCY;
    if (*clusters <= 0) return CF_ERROR_RESIDENCY;
    known[device].store(*clusters, std::memory_order_relaxed);
    return 0;
  }

  // A grid of whole row blocks keeps a row block within one wave; taken if it costs no further wave.
  static int grid(int row_blocks, int clusters) {
    int const per_block = Kernel::Scheduler::kClustersN, items = Kernel::Scheduler::items_of(row_blocks);
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
    if constexpr (IsTile<Operand>::value) {
      constexpr int kMap = index_among<IsTile, Operand>(typename Kernel::OperandList{});
      CfTensor const& tensor = args.operands[ElementOf<Operand>::index];
      return encode_matrix<typename ElementOf<Operand>::type, Kernel::kBatched>(
          &params.tiles[kMap], &params.tile_batches[kMap], tensor, args.batches, args.m,
          Kernel::template kColumnsOf<Operand>, 64, kFragmentColumns,
          Kernel::kPairs ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_NONE);
    }
    return true;
  }
};

}  // namespace comfuse::sm90

#define CF_API extern "C" __attribute__((visibility("default")))

// The kernel under its stem, which is the name a profiler shows, and the functions of abi.h.
#define COMFUSE_EXPORT(STEM, KERNEL)                                                                  \
  extern "C" __global__ void __launch_bounds__(KERNEL::kThreads, 1)                                   \
      STEM(const __grid_constant__ KERNEL::Params params) {                                           \
    KERNEL::run(params);                                                                              \
  }                                                                                                   \
  CF_API int cf_launch_##STEM(CfArgs const* args, void* workspace, void* stream) {                    \
    return comfuse::sm90::Launcher<KERNEL, STEM>::launch(args, workspace, stream);                    \
  }                                                                                                   \
  CF_API int64_t cf_workspace_##STEM(int64_t m, int64_t batches) {                                    \
    return comfuse::sm90::Launcher<KERNEL, STEM>::workspace_bytes(m, batches);                        \
  }                                                                                                   \
  CF_API int cf_info_##STEM(CfInfo* out) { return comfuse::sm90::Launcher<KERNEL, STEM>::info(out); } \
  COMFUSE_EXPORT_TIMELINE(STEM)
