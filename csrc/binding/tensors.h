// From torch tensors to the pointers and strides of abi.h.
#pragma once

#include <comfuse/abi.h>
#include <stdint.h>
#include <torch/csrc/stable/c/shim.h>

#include "table.h"

namespace comfuse::binding {

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

// Tensors that a call owns; released, in the order of the stream, when the call returns.
class Owned {
 public:
  Owned() = default;
  ~Owned();
  Owned(Owned const&) = delete;
  Owned& operator=(Owned const&) = delete;
  void take(AtenTensorHandle tensor);

 private:
  static constexpr int kMax = 2 * CF_MAX_OPERANDS + 8;
  AtenTensorHandle tensors_[kMax];
  int count_ = 0;
};

// Checks of A: rank, K, dtype, device.  Returns M, the product of its leading sizes.
int64_t check_a(Program const& program, View const& a);
void check_b(Program const& program, View const& a, View const& b);
void check_operand(Program const& program, View const& a, int64_t m, int index, View const& operand);

// A matrix for TMA: rows of `columns` contiguous elements, rows and pointer aligned to 16 bytes.  One that is
// not is copied, which is counted under `slot` (see comfuse_copies); `copies` keeps the copy.
CfTensor matrix(View const& view, int64_t rows, int64_t columns, int slot, Owned& copies);

// A vector, of any stride; copied if its dimensions cannot be walked with one stride.
CfTensor vector(View const& view, int64_t count, int slot, Owned& copies);

// A new contiguous tensor of a's leading shape, plus N for a tile.
AtenTensorHandle new_output(Program const& program, View const& a, Slot const& slot);

int32_t torch_dtype(CfDType dtype);

constexpr int kSlotA = 0, kSlotB = 1, kSlotOperand = 2, kSlotKinds = 3;

}  // namespace comfuse::binding
