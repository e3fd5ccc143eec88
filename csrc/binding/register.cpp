// The boxed forms of the ops and their registration for CUDA.  The schemas are defined in Python
// (comfuse/ops).
#include <torch/csrc/stable/library.h>

#include <cstring>

#include "errors.h"
#include "region.h"

namespace comfuse::binding {
namespace {

template <class Handle>
Handle unpack(StableIValue value) {
  return reinterpret_cast<Handle>(uintptr_t(value));
}

double unpack_double(StableIValue value) {
  double result;
  std::memcpy(&result, &value, sizeof(result));
  return result;
}

// A boxed function owns its arguments; this releases them.
class Arguments {
 public:
  Arguments() = default;
  ~Arguments() {
    if (string_ != nullptr) torch_delete_string(string_);
    for (auto list : lists_)
      if (list != nullptr) torch_delete_list(list);
  }
  Arguments(Arguments const&) = delete;
  Arguments& operator=(Arguments const&) = delete;

  std::string_view string(StableIValue value) {
    string_ = unpack<StringHandle>(value);
    char const* text;
    size_t length;
    check(torch_string_c_str(string_, &text), "string");
    check(torch_string_length(string_, &length), "string");
    return {text, length};
  }
  void own(StableIValue value) { tensors_.take(unpack<AtenTensorHandle>(value)); }
  View tensor(StableIValue value) { return View(unpack<AtenTensorHandle>(value)); }
  StableListHandle list(int index, StableIValue value) {
    return lists_[index] = unpack<StableListHandle>(value);
  }

 private:
  StringHandle string_ = nullptr;
  StableListHandle lists_[2] = {};
  Owned tensors_;
};

int size_of(StableListHandle list, int most, char const* what) {
  size_t size;
  check(torch_list_size(list, &size), "list");
  if (size > size_t(most))
    fail("ArgumentError", std::string(what) + " is a list of " + std::to_string(size) +
                              "; allowed: at most " + std::to_string(most));
  return int(size);
}

// region(str spec, Tensor a, Tensor b, Tensor[] operands, float[] scalars) -> Tensor[]
void region(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments;
  Call call;
  call.spec = arguments.string(stack[0]);
  arguments.own(stack[1]);
  arguments.own(stack[2]);
  StableListHandle const operands = arguments.list(0, stack[3]), scalars = arguments.list(1, stack[4]);
  call.a = arguments.tensor(stack[1]);
  call.b = arguments.tensor(stack[2]);
  call.operand_count = size_of(operands, CF_MAX_OPERANDS, "operands");
  for (int i = 0; i < call.operand_count; ++i) {
    StableIValue item;
    check(torch_list_get_item(operands, size_t(i), &item), "list");
    arguments.own(item);
    call.operands[i] = arguments.tensor(item);
  }
  call.scalar_count = size_of(scalars, CF_MAX_SCALARS, "scalars");
  for (int i = 0; i < call.scalar_count; ++i) {
    StableIValue item;
    check(torch_list_get_item(scalars, size_t(i), &item), "list");
    call.scalars[i] = unpack_double(item);
  }
  Outputs outputs;
  run(call, -1, outputs);
  StableListHandle result;
  check(torch_new_list_reserve_size(size_t(outputs.count), &result), "list");
  int const count = outputs.count;
  outputs.count = 0;  // push_back takes each tensor over
  for (int i = 0; i < count; ++i)
    check(torch_list_push_back(result, StableIValue(reinterpret_cast<uintptr_t>(outputs.tensors[i]))),
          "list");
  stack[0] = StableIValue(reinterpret_cast<uintptr_t>(result));
}

// region_1.t<N>(str spec, Tensor a, Tensor b, Tensor t0, ..., float s0=0, float s1=0) -> Tensor
template <int N>
void region_1(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments;
  Call call;
  call.spec = arguments.string(stack[0]);
  for (int i = 1; i < N + 3; ++i) arguments.own(stack[i]);
  call.a = arguments.tensor(stack[1]);
  call.b = arguments.tensor(stack[2]);
  call.operand_count = N;
  for (int i = 0; i < N; ++i) call.operands[i] = arguments.tensor(stack[3 + i]);
  call.scalar_count = 2;
  for (int i = 0; i < 2; ++i) call.scalars[i] = unpack_double(stack[3 + N + i]);
  Outputs outputs;
  run(call, 1, outputs);
  outputs.count = 0;
  stack[0] = StableIValue(reinterpret_cast<uintptr_t>(outputs.tensors[0]));
}

}  // namespace

// The tests build this file for host tensors under another name.
#ifndef COMFUSE_NAMESPACE
#define COMFUSE_NAMESPACE comfuse
#define COMFUSE_DISPATCH_KEY CUDA
#endif

STABLE_TORCH_LIBRARY_IMPL(COMFUSE_NAMESPACE, COMFUSE_DISPATCH_KEY, m) {
  m.impl("region", &region);
  m.impl("region_1.t0", &region_1<0>);
  m.impl("region_1.t1", &region_1<1>);
  m.impl("region_1.t2", &region_1<2>);
  m.impl("region_1.t3", &region_1<3>);
  m.impl("region_1.t4", &region_1<4>);
  m.impl("region_1.t5", &region_1<5>);
  m.impl("region_1.t6", &region_1<6>);
}

}  // namespace comfuse::binding
