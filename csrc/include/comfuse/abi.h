// The C interface between a kernel library and whoever launches it.  Plain C: no CUDA, no torch.
#ifndef COMFUSE_ABI_H_
#define COMFUSE_ABI_H_

#include <stdint.h>

#define CF_ABI_VERSION 5
#define CF_MAX_OPERANDS 16
#define CF_MAX_OUTPUTS 8
#define CF_MAX_SCALARS 16
#define CF_MAX_FACTORS 3  // B of three products: side by side, behind each other

#ifdef __cplusplus
extern "C" {
#endif

// A tensor of the program.  All numbers count elements; periods are positive.
typedef struct {
  void* data;
  int64_t stride;  // between rows of a tile or factor, entries of a vector (0 repeats one)
  // Batch b is at b / batch_period * batch_outer + b % batch_period * batch_stride, where 0 repeats one; of
  // an output at b * batch_stride.
  int64_t batch_stride, batch_period, batch_outer;
  // Strided tiles only.  Row m is at m / row_period * row_outer + m % row_period * stride; column n of an
  // output at n / column_period * column_outer + n % column_period * column_stride.
  int64_t row_period, row_outer;
  int64_t column_stride, column_period, column_outer;
} CfTensor;

// A: m rows of k elements, or k rows of m where the kernel wants M contiguous.  B: N rows of k, or k rows of
// N; one for each product.  `a1` and `k1` are those of the second product where its A is another; they are
// not read otherwise.  `operands` and `outputs` are in the order of the spec, run-time scalars left out
// of the former.  Of a chain, factors, operands and scalars come link by link, and k is that of A.  A, B and
// every tile that is not strided start at multiples of 16 bytes, and so do their rows; of 8 bytes, outputs of
// one-byte elements.
typedef struct {
  uint32_t abi_version;
  uint32_t reserved;
  int64_t m;  // rows of a batch
  int64_t k;
  int64_t batches;  // 1 where the kernel is not batched
  CfTensor a;
  CfTensor b[CF_MAX_FACTORS];
  int64_t k1;
  CfTensor a1;
  CfTensor operands[CF_MAX_OPERANDS];
  CfTensor outputs[CF_MAX_OUTPUTS];
  float scalars[CF_MAX_SCALARS];
} CfArgs;

// What a kernel needs and occupies, for inspection.
typedef struct {
  uint32_t abi_version;
  int32_t registers;
  int32_t local_bytes;  // spills: 0 in a good kernel
  int32_t shared_bytes;
  int32_t max_active_clusters;
  int32_t threads;
} CfInfo;

// Each kernel library exports, for its stem:
//   int     cf_launch_<stem>(const CfArgs*, void* workspace, void* stream)
//   int64_t cf_workspace_<stem>(int64_t m, int64_t batches)
//               bytes; zeroed once before the first launch; for launches of one device and one number of row
//               blocks (of 128 rows, over all batches), one at a time
//   int     cf_info_<stem>(CfInfo*)
// They return 0, a cudaError_t (positive), or one of these:
enum {
  CF_ERROR_ABI = -1,  // built against another version of this header
  CF_ERROR_ARGUMENT = -2,  // a pointer or a stride is misaligned, or a size is out of range
  CF_ERROR_TENSOR_MAP = -3,  // the driver refused a TMA descriptor
  CF_ERROR_DRIVER = -4,  // no usable driver
  CF_ERROR_RESIDENCY = -5  // the GPU cannot hold all tiles at once that wait for each other
};

#ifdef __cplusplus
}
#endif
#endif
