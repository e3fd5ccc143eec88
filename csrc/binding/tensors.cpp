#include "tensors.h"

#include <atomic>
#include <string>

#include "errors.h"

namespace comfuse::binding {
namespace {

constexpr int kMaxRank = 16;
constexpr int64_t kAlignment = 16;  // of TMA: addresses and row strides

std::atomic<int64_t> copied[kSlotKinds];

int64_t element_bytes(int32_t dtype) { return dtype == torch_dtype(CF_FP32) ? 4 : 2; }

std::string shape_of(View const& view) {
  std::string text = "(";
  for (int64_t i = 0; i < view.rank; ++i) text += (i ? ", " : "") + std::to_string(view.sizes[i]);
  return text + ")";
}

char const* dtype_name(CfDType dtype) {
  return dtype == CF_BF16 ? "bfloat16" : dtype == CF_FP16 ? "float16" : "float32";
}

void check_dtype(std::string const& name, View const& view, CfDType dtype) {
  if (view.dtype != torch_dtype(dtype))
    fail("DTypeError", name + " is of another dtype than the spec says; allowed: " + dtype_name(dtype));
}

void check_device(std::string const& name, View const& a, View const& view) {
  if (view.device_type != a.device_type || view.device_index != a.device_index)
    fail("DeviceError", name + " is on another device than a; allowed: one device for all tensors");
}

// The first `rank` dimensions as one, `*stride` elements apart; false if no single stride walks them.
bool collapse(View const& view, int64_t rank, int64_t* stride) {
  int64_t next = -1;
  *stride = 0;
  for (int64_t i = rank - 1; i >= 0; --i) {
    if (view.sizes[i] == 1) continue;
    if (next < 0)
      *stride = view.strides[i];
    else if (view.strides[i] != next)
      return false;
    next = view.strides[i] * view.sizes[i];
  }
  return true;
}

bool aligned(int64_t bytes) { return bytes % kAlignment == 0; }

void* contiguous_copy(View const& view, int slot, Owned& copies) {
  if (view.rank > kMaxRank)
    fail("ShapeError", "an operand is of rank " + std::to_string(view.rank) + "; allowed: at most 16");
  int64_t strides[kMaxRank];
  int64_t stride = 1;
  for (int64_t i = view.rank - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= view.sizes[i];
  }
  AtenTensorHandle copy;
  check(aoti_torch_empty_strided(view.rank, view.sizes, strides, view.dtype, view.device_type,
                                 view.device_index, &copy),
        "empty_strided");
  copies.take(copy);
  check(aoti_torch_copy_(copy, view.handle, 0), "copy_");
  copied[slot].fetch_add(1, std::memory_order_relaxed);
  void* data;
  check(aoti_torch_get_data_ptr(copy, &data), "data_ptr");
  return data;
}

bool leading_sizes_match(View const& a, View const& view, int64_t leading) {
  if (leading != a.rank - 1) return true;  // flattened: the product alone counts
  for (int64_t i = 0; i < leading; ++i)
    if (view.sizes[i] != a.sizes[i]) return false;
  return true;
}

int64_t product(View const& view, int64_t rank) {
  int64_t result = 1;
  for (int64_t i = 0; i < rank; ++i) result *= view.sizes[i];
  return result;
}

}  // namespace

int32_t torch_dtype(CfDType dtype) {
  static int32_t const bf16 = aoti_torch_dtype_bfloat16(), fp16 = aoti_torch_dtype_float16(),
                       fp32 = aoti_torch_dtype_float32();
  return dtype == CF_BF16 ? bf16 : dtype == CF_FP16 ? fp16 : fp32;
}

View::View(AtenTensorHandle tensor) : handle(tensor) {
  int64_t *size_list, *stride_list;
  bool const failed = aoti_torch_get_data_ptr(tensor, &data) || aoti_torch_get_dim(tensor, &rank) ||
                      aoti_torch_get_sizes(tensor, &size_list) ||
                      aoti_torch_get_strides(tensor, &stride_list) || aoti_torch_get_dtype(tensor, &dtype) ||
                      aoti_torch_get_device_type(tensor, &device_type) ||
                      aoti_torch_get_device_index(tensor, &device_index);
  check(failed, "a strided tensor is expected");
  sizes = size_list;
  strides = stride_list;
}

Owned::~Owned() {
  for (int i = 0; i < count_; ++i) aoti_torch_delete_tensor_object(tensors_[i]);
}

void Owned::take(AtenTensorHandle tensor) {
  if (count_ == kMax) {
    aoti_torch_delete_tensor_object(tensor);
    fail("ArgumentError", "operands is a list of too many tensors; allowed: at most 16");
  }
  tensors_[count_++] = tensor;
}

int64_t check_a(Program const& program, View const& a) {
  if (a.rank < 1 || a.rank > kMaxRank || a.sizes[a.rank - 1] != program.k)
    fail("ShapeError",
         "a is of shape " + shape_of(a) + "; allowed: (..., K) with K = " + std::to_string(program.k));
  check_dtype("a", a, program.dtype);
  return product(a, a.rank - 1);
}

void check_b(Program const& program, View const& a, View const& b) {
  if (b.rank != 2 || b.sizes[0] != program.n || b.sizes[1] != program.k)
    fail("ShapeError", "b is of shape " + shape_of(b) + "; allowed: (" + std::to_string(program.n) + ", " +
                           std::to_string(program.k) + ")");
  check_dtype("b", b, program.dtype);
  check_device("b", a, b);
}

void check_operand(Program const& program, View const& a, int64_t m, int index, View const& operand) {
  Slot const& slot = program.operands[size_t(index)];
  int64_t const rank = operand.rank;
  check_dtype(slot.name, operand, slot.dtype);
  check_device(slot.name, a, operand);
  bool ok = rank >= 1;
  char const* allowed = "";
  switch (slot.space) {
    case CF_ROW:
      ok = ok && operand.sizes[rank - 1] == program.n && product(operand, rank) == program.n;
      allowed = "(N,)";
      break;
    case CF_COLUMN: {
      bool const keeps_column = rank == a.rank && rank >= 1 && operand.sizes[rank - 1] == 1;
      ok = product(operand, rank) == m && leading_sizes_match(a, operand, keeps_column ? rank - 1 : rank);
      allowed = "(...,) or (..., 1) with the leading sizes of a, or (M,)";
      break;
    }
    case CF_TILE:
      ok = ok && operand.sizes[rank - 1] == program.n && product(operand, rank - 1) == m &&
           leading_sizes_match(a, operand, rank - 1);
      allowed = "(..., N) with the leading sizes of a, or (M, N)";
      break;
  }
  if (!ok)
    fail("ShapeError", slot.name + " is of shape " + shape_of(operand) + "; allowed: " + allowed +
                           " with M = " + std::to_string(m) + ", N = " + std::to_string(program.n));
}

CfTensor matrix(View const& view, int64_t rows, int64_t columns, int slot, Owned& copies) {
  int64_t const bytes = element_bytes(view.dtype);
  int64_t stride;
  bool usable = collapse(view, view.rank - 1, &stride) &&
                aligned(int64_t(reinterpret_cast<intptr_t>(view.data))) &&
                (columns == 1 || view.strides[view.rank - 1] == 1);
  if (rows == 1)
    stride = columns;  // one row: whatever torch says of it has no meaning
  else
    usable = usable && stride >= columns && aligned(stride * bytes);
  if (usable) return {view.data, stride};
  return {contiguous_copy(view, slot, copies), columns};
}

CfTensor vector(View const& view, int64_t count, int slot, Owned& copies) {
  int64_t stride;
  if (count == 1) return {view.data, 0};
  if (collapse(view, view.rank, &stride)) return {view.data, stride};
  return {contiguous_copy(view, slot, copies), 1};
}

AtenTensorHandle new_output(Program const& program, View const& a, Slot const& slot) {
  int64_t sizes[kMaxRank], strides[kMaxRank];
  int64_t rank = a.rank - 1;
  for (int64_t i = 0; i < rank; ++i) sizes[i] = a.sizes[i];
  if (slot.space == CF_TILE) sizes[rank++] = program.n;
  int64_t stride = 1;
  for (int64_t i = rank - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= sizes[i] > 1 ? sizes[i] : 1;
  }
  AtenTensorHandle output;
  check(aoti_torch_empty_strided(rank, sizes, strides, torch_dtype(slot.dtype), a.device_type, a.device_index,
                                 &output),
        "empty_strided");
  return output;
}

}  // namespace comfuse::binding

// How often a call copied a tensor that a kernel cannot read in place; slot 0: A, 1: B, 2: any operand.
extern "C" __attribute__((visibility("default"))) int64_t comfuse_copies(int slot) {
  return comfuse::binding::copied[slot].load(std::memory_order_relaxed);
}
extern "C" __attribute__((visibility("default"))) void comfuse_reset_copies() {
  for (auto& count : comfuse::binding::copied) count.store(0, std::memory_order_relaxed);
}
