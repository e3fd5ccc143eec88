#include "cuda_api.h"

#include <dlfcn.h>
#include <torch/csrc/stable/c/shim.h>

#include <atomic>
#include <string>

#include "errors.h"

namespace comfuse::binding {

namespace {

template <class F>
void resolve(void* library, char const* name, F*& function, bool required = true) {
  // dlsym searches what libtorch_cuda depends on too, which is where the CUDA runtime is.
  function = reinterpret_cast<F*>(dlsym(library, name));
  if (function == nullptr && required)
    fail("LaunchError", std::string(name) + " is not in torch's CUDA libraries");
}

CudaApi load() {
  void* torch = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  if (torch == nullptr) fail("LaunchError", "this torch is not a CUDA build; a kernel cannot be launched");
  CudaApi api{};
  resolve(torch, "cudaGetDevice", api.get_device);
  resolve(torch, "cudaSetDevice", api.set_device);
  resolve(torch, "cudaDeviceGetAttribute", api.device_attribute);
  resolve(torch, "cudaGetErrorString", api.error_string);
  resolve(torch, "cudaMalloc", api.allocate);
  resolve(torch, "cudaMemsetAsync", api.memset_async);
  resolve(torch, "cudaStreamCreateWithFlags", api.stream_create);
  resolve(torch, "cudaStreamSynchronize", api.stream_synchronize);
  resolve(torch, "cudaStreamIsCapturing", api.stream_is_capturing);
  resolve(torch, "cudaThreadExchangeStreamCaptureMode", api.exchange_capture_mode);
  resolve(torch, "cudaUserObjectCreate", api.user_object_create);
  resolve(torch, "cudaGraphRetainUserObject", api.graph_retain);
  resolve(torch, "aoti_torch_get_current_cuda_stream", api.current_stream);
  resolve(torch, "cudaStreamGetCaptureInfo_v2", api.capture_info_12, false);
  if (api.capture_info_12 == nullptr) resolve(torch, "cudaStreamGetCaptureInfo", api.capture_info_13);
  return api;
}

}  // namespace

CudaApi const& cuda() {
  static CudaApi const api = load();
  return api;
}

int32_t device_type() {
  static int32_t const type = aoti_torch_device_type_cuda();
  return type;
}

bool runs_kernels(int device) {
  enum { kUnknown, kYes, kNo };
  static std::atomic<int> known[64];
  if (device < 0 || device >= 64) return false;
  int state = known[device].load(std::memory_order_relaxed);
  if (state == kUnknown) {
    int major, minor;
    check_cuda(cuda().device_attribute(&major, kComputeMajor, device), "cudaDeviceGetAttribute");
    check_cuda(cuda().device_attribute(&minor, kComputeMinor, device), "cudaDeviceGetAttribute");
    state = major == 9 && minor == 0 ? kYes : kNo;
    known[device].store(state, std::memory_order_relaxed);
  }
  return state == kYes;
}

void check_cuda(int error, char const* what) {
  if (error != 0) fail("LaunchError", std::string(what) + ": " + cuda().error_string(error));
}

int CudaApi::captured_graph(Stream stream, Graph* graph) const {
  int status;
  unsigned long long id;
  void const *dependencies, *edges;  // not used, but edges of some kinds make it an error not to ask for them
  size_t count;
  if (capture_info_12 != nullptr) return capture_info_12(stream, &status, &id, graph, nullptr, nullptr);
  return capture_info_13(stream, &status, &id, graph, &dependencies, &edges, &count);
}

DeviceGuard::DeviceGuard(int device) {
  int current;
  check_cuda(cuda().get_device(&current), "cudaGetDevice");
  if (current == device) return;
  check_cuda(cuda().set_device(device), "cudaSetDevice");
  previous_ = current;
}

DeviceGuard::~DeviceGuard() {
  if (previous_ >= 0) cuda().set_device(previous_);
}

RelaxedCapture::RelaxedCapture() {
  check_cuda(cuda().exchange_capture_mode(&mode_), "cudaThreadExchangeStreamCaptureMode");
}

RelaxedCapture::~RelaxedCapture() { cuda().exchange_capture_mode(&mode_); }

}  // namespace comfuse::binding
