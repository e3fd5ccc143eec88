#include "view.h"

#include <atomic>

#include "errors.h"

namespace comfuse::binding {
namespace {

struct Element {
  int32_t (*torch)();  // torch's own number
  int64_t bytes;
  char const* name;
};

// The first ones are in the order of CfDType.
Element const kElements[] = {
    {aoti_torch_dtype_bfloat16, 2, "torch.bfloat16"},
    {aoti_torch_dtype_float16, 2, "torch.float16"},
    {aoti_torch_dtype_float32, 4, "torch.float32"},
    {aoti_torch_dtype_float8_e4m3fn, 1, "torch.float8_e4m3fn"},
    {aoti_torch_dtype_float8_e5m2, 1, "torch.float8_e5m2"},
    {aoti_torch_dtype_int8, 1, "torch.int8"},
    {aoti_torch_dtype_uint8, 1, "torch.uint8"},
    {aoti_torch_dtype_bool, 1, "torch.bool"},
    {aoti_torch_dtype_int32, 4, "torch.int32"},
    {aoti_torch_dtype_int64, 8, "torch.int64"},
    // Named in messages only.
    {aoti_torch_dtype_float64, 8, "torch.float64"},
    {aoti_torch_dtype_int16, 2, "torch.int16"},
    {aoti_torch_dtype_complex64, 8, "torch.complex64"},
    {aoti_torch_dtype_complex128, 16, "torch.complex128"},
};
constexpr int kDTypes = CF_INT64 + 1;

std::atomic<int64_t> copied[kSlotKinds];

}  // namespace

int32_t torch_dtype(CfDType dtype) {
  static struct Numbers {
    int32_t of[kDTypes];
    Numbers() {
      for (int i = 0; i < kDTypes; ++i) of[i] = kElements[i].torch();
    }
  } const numbers;
  return numbers.of[dtype];
}

int64_t element_bytes(CfDType dtype) { return kElements[dtype].bytes; }

std::string dtype_name(int32_t torch_dtype) {
  for (Element const& element : kElements)
    if (element.torch() == torch_dtype) return element.name;
  return "of a dtype that ComFuse does not know";
}

std::string tuple_text(int64_t const* values, int64_t count) {
  std::string text = "(";
  for (int64_t i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + (count == 1 ? ",)" : ")");
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

void Shape::make_contiguous() {
  int64_t stride = 1;
  for (int64_t i = rank - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= sizes[i] > 1 ? sizes[i] : 1;
  }
}

Owned::~Owned() {
  for (int i = 0; i < count_; ++i) aoti_torch_delete_tensor_object(tensors_[i]);
}

void Owned::take(AtenTensorHandle tensor) {
  if (count_ == kMax) {
    aoti_torch_delete_tensor_object(tensor);
    fail("LaunchError", "a call holds more tensors than it can have");
  }
  tensors_[count_++] = tensor;
}

AtenTensorHandle empty(Shape const& shape, int32_t dtype, View const& like) {
  AtenTensorHandle tensor;
  check(aoti_torch_empty_strided(shape.rank, shape.sizes, shape.strides, dtype, like.device_type,
                                 like.device_index, &tensor),
        "empty_strided");
  return tensor;
}

void* data_of(AtenTensorHandle tensor) {
  void* data;
  check(aoti_torch_get_data_ptr(tensor, &data), "data_ptr");
  return data;
}

void count_copy(int slot) { copied[slot].fetch_add(1, std::memory_order_relaxed); }

}  // namespace comfuse::binding

// How often a call copied a tensor that a kernel cannot read in place; slot 0: A, 1: B, 2: any operand.
extern "C" __attribute__((visibility("default"))) int64_t comfuse_copies(int slot) {
  return comfuse::binding::copied[slot].load(std::memory_order_relaxed);
}
extern "C" __attribute__((visibility("default"))) void comfuse_reset_copies() {
  for (auto& count : comfuse::binding::copied) count.store(0, std::memory_order_relaxed);
}
