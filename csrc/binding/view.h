// Torch tensors as the binding sees them.
#pragma once

#include <comfuse/abi.h>
#include <stdint.h>
#include <torch/csrc/stable/c/shim.h>

#include <string>

#include "table.h"

namespace comfuse::binding {

constexpr int64_t kMaxRank = 16;

// What a call reads of a tensor, without owning it.
struct View {
  AtenTensorHandle handle;
  void* data;
  int64_t rank;
  int64_t const* sizes;
  int64_t const* strides;
  int32_t dtype, device_type, device_index;

  explicit View(AtenTensorHandle tensor);
  View() = default;
};

// Sizes and strides of a tensor that is yet to be made.
struct Shape {
  int64_t rank = 0;
  int64_t sizes[kMaxRank + 1], strides[kMaxRank + 1];

  void append(int64_t size) { sizes[rank++] = size; }
  void make_contiguous();
};

// Tensors that a call owns; released, in the order of the stream, when the call returns.
class Owned {
 public:
  Owned() = default;
  ~Owned();
  Owned(Owned const&) = delete;
  Owned& operator=(Owned const&) = delete;
  void take(AtenTensorHandle tensor);

 private:
  // The arguments of a call; or a copy of each of them, and a view of what is copied.
  static constexpr int kMax = 2 * (CF_MAX_OPERANDS + CF_MAX_FACTORS) + CF_MAX_OUTPUTS + 8;
  AtenTensorHandle tensors_[kMax];
  int count_ = 0;
};

// A new tensor on the device of `like`.
AtenTensorHandle empty(Shape const& shape, int32_t dtype, View const& like);

void* data_of(AtenTensorHandle tensor);

int32_t torch_dtype(CfDType dtype);
int64_t element_bytes(CfDType dtype);

// "torch.bfloat16", for messages.
std::string dtype_name(int32_t torch_dtype);
// "(2, 3)", as Python prints a tuple.
std::string tuple_text(int64_t const* values, int64_t count);

// Calls that copied a tensor which a kernel cannot read in place, by what it was (see comfuse_copies).
constexpr int kSlotA = 0, kSlotB = 1, kSlotOperand = 2, kSlotKinds = 3;
void count_copy(int slot);

}  // namespace comfuse::binding
