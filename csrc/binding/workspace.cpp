#include "workspace.h"

#include <torch/csrc/stable/c/shim.h>

#include <mutex>
#include <unordered_map>
#include <vector>

#include "errors.h"

namespace comfuse::binding {
namespace {

// Beyond this, the workspaces that were not used for the longest time go back to torch's allocator.
constexpr int64_t kPoolLimit = int64_t(256) << 20;

struct Key {
  Kernel const* kernel;
  int device;
  Stream stream;
  int64_t row_blocks;  // of all batches
  int64_t bytes;
  bool operator==(Key const& other) const {
    return kernel == other.kernel && device == other.device && stream == other.stream &&
           row_blocks == other.row_blocks && bytes == other.bytes;
  }
};

struct KeyHash {
  size_t operator()(Key const& key) const {
    size_t h = reinterpret_cast<size_t>(key.kernel);
    for (size_t part : {size_t(key.device), reinterpret_cast<size_t>(key.stream), size_t(key.row_blocks),
                        size_t(key.bytes)})
      h = (h ^ part) * 0x9e3779b97f4a7c15u, h ^= h >> 32;
    return h;
  }
};

// A tensor, so that it is accounted for, and reused safely, by torch's caching allocator.
struct Workspace {
  AtenTensorHandle tensor;
  void* data;
  uint64_t last_use;
};

struct Pool {
  std::mutex mutex;
  std::unordered_map<Key, Workspace, KeyHash> workspaces;
  int64_t bytes = 0;
  uint64_t clock = 0;
};

// Memory of a captured launch.  Torch's allocator would hand it to others between two replays.
struct GraphBuffer {
  int device;
  int64_t bytes;
  void* data;
};

struct GraphBuffers {
  std::mutex mutex;
  std::vector<GraphBuffer*> free;
  std::unordered_map<int, Stream> streams;  // one a device, never captured, for clearing
};

// Both are leaked: graphs and streams may outlive any order of destruction.
Pool& pool() {
  static Pool* const instance = new Pool;
  return *instance;
}
GraphBuffers& graph_buffers() {
  static GraphBuffers* const instance = new GraphBuffers;
  return *instance;
}

void evict(Pool& pool) {
  while (pool.bytes > kPoolLimit && pool.workspaces.size() > 1) {
    auto oldest = pool.workspaces.begin();
    for (auto it = pool.workspaces.begin(); it != pool.workspaces.end(); ++it)
      if (it->second.last_use < oldest->second.last_use) oldest = it;
    pool.bytes -= oldest->first.bytes;
    aoti_torch_delete_tensor_object(oldest->second.tensor);
    pool.workspaces.erase(oldest);
  }
}

void* stream_workspace(Key const& key) {
  Pool& p = pool();
  std::lock_guard<std::mutex> lock(p.mutex);
  auto const found = p.workspaces.find(key);
  if (found != p.workspaces.end()) {
    found->second.last_use = ++p.clock;
    return found->second.data;
  }
  int64_t const size = key.bytes, stride = 1;
  Workspace made{};
  check(aoti_torch_empty_strided(1, &size, &stride, aoti_torch_dtype_uint8(), device_type(), key.device,
                                 &made.tensor),
        "empty_strided of a workspace");
  int const error = aoti_torch_get_data_ptr(made.tensor, &made.data) != 0
                        ? -1
                        : cuda().memset_async(made.data, 0, size_t(size), key.stream);
  if (error != 0) {
    aoti_torch_delete_tensor_object(made.tensor);
    fail("LaunchError", "a workspace cannot be cleared");
  }
  made.last_use = ++p.clock;
  p.workspaces.emplace(key, made);
  p.bytes += size;
  evict(p);
  return made.data;
}

// Called by CUDA, on a thread of its own, when the last graph that holds the buffer is gone.  May not call
// CUDA.
void give_back(void* buffer) {
  std::lock_guard<std::mutex> lock(graph_buffers().mutex);
  graph_buffers().free.push_back(static_cast<GraphBuffer*>(buffer));
}

GraphBuffer* take_graph_buffer(int device, int64_t bytes) {
  GraphBuffers& all = graph_buffers();
  for (size_t i = 0; i < all.free.size(); ++i) {
    GraphBuffer* const buffer = all.free[i];
    if (buffer->device != device || buffer->bytes != bytes) continue;
    all.free.erase(all.free.begin() + ptrdiff_t(i));
    return buffer;
  }
  void* data = nullptr;
  check_cuda(cuda().allocate(&data, size_t(bytes)), "cudaMalloc of a workspace");
  return new GraphBuffer{device, bytes, data};
}

// Cleared now, not by a node of the graph: a replay must find what the replay before it left.
void clear(GraphBuffer const& buffer) {
  Stream& stream = graph_buffers().streams[buffer.device];
  if (stream == nullptr) check_cuda(cuda().stream_create(&stream, kNonBlocking), "cudaStreamCreateWithFlags");
  check_cuda(cuda().memset_async(buffer.data, 0, size_t(buffer.bytes), stream), "cudaMemsetAsync");
  check_cuda(cuda().stream_synchronize(stream), "cudaStreamSynchronize");
}

void* graph_workspace(int device, Stream stream, int64_t bytes) {
  RelaxedCapture relaxed;
  GraphBuffer* buffer;
  {
    std::lock_guard<std::mutex> lock(graph_buffers().mutex);
    buffer = take_graph_buffer(device, bytes);
    clear(*buffer);
  }
  Graph graph = nullptr;
  void* owner = nullptr;
  check_cuda(cuda().captured_graph(stream, &graph), "cudaStreamGetCaptureInfo");
  check_cuda(cuda().user_object_create(&owner, buffer, give_back, 1, kNoDestructorSync),
             "cudaUserObjectCreate");
  check_cuda(cuda().graph_retain(graph, owner, 1, kGraphMove), "cudaGraphRetainUserObject");
  return buffer->data;
}

}  // namespace

bool is_capturing(Stream stream) {
  if (stream == nullptr)
    return false;  // the legacy stream cannot be captured, and may not be asked meanwhile
  int status;
  check_cuda(cuda().stream_is_capturing(stream, &status), "cudaStreamIsCapturing");
  return status == kCapturing;
}

void* workspace_for(Kernel const& kernel, Extent const& extent, int device, Stream stream, bool capturing) {
  int64_t const bytes = kernel.workspace(extent.m, extent.batches);
  if (bytes == 0) return nullptr;
  return capturing ? graph_workspace(device, stream, bytes)
                   : stream_workspace({&kernel, device, stream, extent.batches * extent.row_blocks(), bytes});
}

}  // namespace comfuse::binding
