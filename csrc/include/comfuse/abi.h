// The C interface between a kernel library and whoever launches it.  Plain C: no CUDA, no torch.
#ifndef COMFUSE_ABI_H_
#define COMFUSE_ABI_H_

#include <stdint.h>

#define CF_ABI_VERSION 1
#define CF_MAX_OPERANDS 16
#define CF_MAX_OUTPUTS 8
#define CF_MAX_SCALARS 16

#ifdef __cplusplus
extern "C" {
#endif

// A tensor of the program.  `stride` counts elements: between rows of a tile, between entries of a
// vector, where 0 repeats one entry.  Tiles, A and B start at multiples of 16 bytes, and so do their rows.
typedef struct {
  void* data;
  int64_t stride;
} CfTensor;

// A: m rows of k elements, `a.stride` apart.  B: N rows of k elements (N is the kernel's own).
// `operands` and `outputs` are in the order of the spec, run-time scalars left out of the former.
typedef struct {
  uint32_t abi_version;
  uint32_t reserved;
  int64_t m;
  int64_t k;
  CfTensor a;
  CfTensor b;
  CfTensor operands[CF_MAX_OPERANDS];
  CfTensor outputs[CF_MAX_OUTPUTS];
  float scalars[CF_MAX_SCALARS];
} CfArgs;

// What a kernel needs and occupies, for inspection.
typedef struct {
  uint32_t abi_version;
  int32_t registers;
  int32_t local_bytes;   // spills: 0 in a good kernel
  int32_t shared_bytes;
  int32_t max_active_clusters;
  int32_t threads;
} CfInfo;

// Each kernel library exports, for its stem:
//   int     cf_launch_<stem>(const CfArgs*, void* workspace, void* stream)
//   int64_t cf_workspace_<stem>(int64_t m)      bytes; zeroed once before the first launch; for launches of
//                                               one device and one number of row blocks (of 128 rows), one
//                                               at a time
//   int     cf_info_<stem>(CfInfo*)
// They return 0, a cudaError_t (positive), or one of these:
enum {
  CF_ERROR_ABI = -1,          // built against another version of this header
  CF_ERROR_ARGUMENT = -2,     // a pointer or a stride is misaligned, or a size is out of range
  CF_ERROR_TENSOR_MAP = -3,   // the driver refused a TMA descriptor
  CF_ERROR_DRIVER = -4,       // no usable driver
  CF_ERROR_RESIDENCY = -5     // the GPU cannot hold one row group of tiles at once
};

#ifdef __cplusplus
}
#endif
#endif
