// csrc/binding/cuda_api.cpp for tests on a host: one device, whose memory is the host's, and which the test
// steers.
#include <torch/csrc/stable/c/shim.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cuda_api.h"
#include "errors.h"

#define FAKE_API extern "C" __attribute__((visibility("default")))

namespace {

bool capturing = false;
bool supported = true;
int current_device = 0;
comfuse::binding::Stream stream = reinterpret_cast<void*>(0x10);
std::vector<std::pair<void*, void (*)(void*)>> retained;
int allocations = 0;
int relaxed_depth = 0;

}  // namespace

FAKE_API void fake_set_capturing(int value) { capturing = value != 0; }
FAKE_API void fake_set_supported(int value) { supported = value != 0; }
FAKE_API void fake_set_stream(void* value) { stream = value; }
FAKE_API int fake_allocations() { return allocations; }
FAKE_API int fake_relaxed_depth() { return relaxed_depth; }
// The end of all graphs: their user objects are destroyed.
FAKE_API void fake_destroy_graphs() {
  for (auto [object, destroy] : retained) destroy(object);
  retained.clear();
}

namespace comfuse::binding {
namespace {

CudaApi make() {
  CudaApi api{};
  api.get_device = [](int* device) { return *device = current_device, 0; };
  api.set_device = [](int device) { return current_device = device, 0; };
  api.error_string = [](int) -> char const* { return "fake error"; };
  api.allocate = [](void** data, size_t bytes) {
    ++allocations;
    return (*data = std::malloc(bytes)) ? 0 : 2;
  };
  api.memset_async = [](void* data, int value, size_t bytes, Stream) {
    return std::memset(data, value, bytes), 0;
  };
  api.stream_create = [](Stream* made, unsigned) { return *made = reinterpret_cast<void*>(0x20), 0; };
  api.stream_synchronize = [](Stream) { return 0; };
  api.stream_is_capturing = [](Stream, int* status) {
    return *status = capturing ? kCapturing : kNotCapturing, 0;
  };
  api.exchange_capture_mode = [](int* mode) {
    relaxed_depth += *mode == kRelaxed ? 1 : -1;
    *mode = *mode == kRelaxed ? kGlobal : kRelaxed;
    return 0;
  };
  api.user_object_create = [](void** object, void* data, void (*destroy)(void*), unsigned, unsigned) {
    retained.emplace_back(data, destroy);
    return *object = data, 0;
  };
  api.graph_retain = [](Graph, void*, unsigned, unsigned) { return 0; };
  api.capture_info_12 = [](Stream, int*, unsigned long long*, Graph* graph, void const**, size_t*) {
    return *graph = nullptr, 0;
  };
  api.current_stream = [](int32_t, void** current) { return *current = stream, 0; };
  return api;
}

}  // namespace

CudaApi const& cuda() {
  static CudaApi const api = make();
  return api;
}

int32_t device_type() { return aoti_torch_device_type_cpu(); }
bool runs_kernels(int) { return supported; }

void check_cuda(int error, char const* what) {
  if (error != 0) fail("LaunchError", std::string(what) + ": " + cuda().error_string(error));
}

int CudaApi::captured_graph(Stream s, Graph* graph) const {
  return capture_info_12(s, nullptr, nullptr, graph, nullptr, nullptr);
}

DeviceGuard::DeviceGuard(int) {}
DeviceGuard::~DeviceGuard() = default;
RelaxedCapture::RelaxedCapture() { cuda().exchange_capture_mode(&mode_); }
RelaxedCapture::~RelaxedCapture() { cuda().exchange_capture_mode(&mode_); }

}  // namespace comfuse::binding
