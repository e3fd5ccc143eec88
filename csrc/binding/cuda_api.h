// The few CUDA functions that the binding needs, taken at run time from the libraries that torch has loaded,
// so that the binding itself links against no CUDA and loads where torch is a CPU build.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace comfuse::binding {

using Stream = void*;  // cudaStream_t
using Graph = void*;   // cudaGraph_t

enum CaptureStatus : int { kNotCapturing = 0, kCapturing = 1, kCaptureInvalid = 2 };
enum CaptureMode : int { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };
constexpr int kComputeMajor = 75, kComputeMinor = 76;  // cudaDevAttrComputeCapability*
constexpr unsigned kNonBlocking = 1;                   // cudaStreamNonBlocking
constexpr unsigned kNoDestructorSync = 1;              // cudaUserObjectNoDestructorSync
constexpr unsigned kGraphMove = 1;                     // cudaGraphUserObjectMove

struct CudaApi {
  int (*get_device)(int*);
  int (*set_device)(int);
  int (*device_attribute)(int*, int, int);
  char const* (*error_string)(int);
  int (*allocate)(void**, size_t);
  int (*memset_async)(void*, int, size_t, Stream);
  int (*stream_create)(Stream*, unsigned);
  int (*stream_synchronize)(Stream);
  int (*stream_is_capturing)(Stream, int*);
  int (*exchange_capture_mode)(int*);
  int (*user_object_create)(void**, void*, void (*)(void*), unsigned, unsigned);
  int (*graph_retain)(Graph, void*, unsigned, unsigned);
  // Of these one is set: the name and the arguments changed between CUDA 12 and 13.
  int (*capture_info_12)(Stream, int*, unsigned long long*, Graph*, void const**, size_t*);
  int (*capture_info_13)(Stream, int*, unsigned long long*, Graph*, void const**, void const**, size_t*);
  int (*current_stream)(int32_t, void**);  // aoti_torch_get_current_cuda_stream

  // The graph that `stream` is being captured into.
  int captured_graph(Stream stream, Graph* graph) const;
};

// Throws LaunchError if this process has no CUDA build of torch.
CudaApi const& cuda();

// Torch's number for the kind of device that kernels run on.
int32_t device_type();

// Whether kernels, which are sm_90a code, run on this device; asked once a device.
bool runs_kernels(int device);

// Throws LaunchError with CUDA's own words if `error` is not 0.
void check_cuda(int error, char const* what);

// Makes a device current for a scope; costs nothing when it is current already.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(DeviceGuard const&) = delete;
  DeviceGuard& operator=(DeviceGuard const&) = delete;

 private:
  int previous_ = -1;
};

// Allows calls that are forbidden while a stream of this thread is being captured, for a scope.
class RelaxedCapture {
 public:
  RelaxedCapture();
  ~RelaxedCapture();
  RelaxedCapture(RelaxedCapture const&) = delete;
  RelaxedCapture& operator=(RelaxedCapture const&) = delete;

 private:
  int mode_ = kRelaxed;
};

}  // namespace comfuse::binding
