// The boxed forms of the ops and their registration for CUDA.  The schemas are defined in Python
// (comfuse/ops).
#include <torch/csrc/stable/library.h>

#include <cstring>
#include <string>
#include <utility>

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
    for (int i = 0; i < list_count_; ++i) torch_delete_list(lists_[i]);
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
  StableListHandle list(StableIValue value) {
    return lists_[list_count_++] = unpack<StableListHandle>(value);
  }

 private:
  StringHandle string_ = nullptr;
  StableListHandle lists_[3];
  int list_count_ = 0;
  Owned tensors_;
};

StableIValue pack(void* handle) { return StableIValue(reinterpret_cast<uintptr_t>(handle)); }

int size_of(StableListHandle list, int most, char const* what) {
  size_t size;
  check(torch_list_size(list, &size), "list");
  if (size > size_t(most))
    fail("ArgumentError", std::string(what) + " is a list of " + std::to_string(size) +
                              "; allowed: at most " + std::to_string(most));
  return int(size);
}

StableIValue item_of(StableListHandle list, int index) {
  StableIValue item;
  check(torch_list_get_item(list, size_t(index), &item), "list");
  return item;
}

int unpack_tensors(Arguments& arguments, StableListHandle list, int most, char const* what, View* views) {
  int const count = size_of(list, most, what);
  for (int i = 0; i < count; ++i) {
    StableIValue const item = item_of(list, i);
    arguments.own(item);
    views[i] = arguments.tensor(item);
  }
  return count;
}

// str spec, Tensor a, Tensor b, Tensor[] operands (if it has any), float[] scalars
void unpack_call(Arguments& arguments, StableIValue const* stack, bool has_operands, Call& call) {
  call.spec = arguments.string(stack[0]);
  arguments.own(stack[1]);
  arguments.own(stack[2]);
  StableListHandle const operands = has_operands ? arguments.list(stack[3]) : nullptr;
  StableListHandle const scalars = arguments.list(stack[has_operands ? 4 : 3]);
  call.a = arguments.tensor(stack[1]);
  call.b = arguments.tensor(stack[2]);
  call.operand_count =
      has_operands ? unpack_tensors(arguments, operands, kMaxTensors, "operands", call.operands) : 0;
  call.scalar_count = size_of(scalars, CF_MAX_SCALARS, "scalars");
  for (int i = 0; i < call.scalar_count; ++i) call.scalars[i] = unpack_double(item_of(scalars, i));
}

// region(str spec, Tensor a, Tensor b, Tensor[] operands, float[] scalars) -> Tensor[]
// region.alone(str spec, Tensor a, Tensor b, float[] scalars) -> Tensor[]
template <bool HasOperands>
void region(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments;
  Call call;
  unpack_call(arguments, stack, HasOperands, call);
  Outputs outputs;
  run(call, -1, outputs);
  StableListHandle result;
  check(torch_new_list_reserve_size(size_t(outputs.count), &result), "list");
  int const count = outputs.count;
  outputs.count = 0;  // push_back takes each tensor over
  for (int i = 0; i < count; ++i) check(torch_list_push_back(result, pack(outputs.tensors[i])), "list");
  stack[0] = pack(result);
}

// region_out(str spec, Tensor a, Tensor b, Tensor[] operands, float[] scalars, Tensor(a!)[] out) -> ()
void region_out(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments;
  Call call;
  unpack_call(arguments, stack, true, call);
  View outputs[CF_MAX_OUTPUTS];
  int const count = unpack_tensors(arguments, arguments.list(stack[5]), CF_MAX_OUTPUTS, "out", outputs);
  run_into(call, outputs, count);
}

// region_<Count>.t<N>(str spec, Tensor a, Tensor b, Tensor t0, ..., float s0=0, float s1=0) -> Tensor, or
// (Tensor, ...)
template <int Count, int N>
void region_fixed(StableIValue* stack, uint64_t, uint64_t) {
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
  run(call, Count, outputs);
  outputs.count = 0;
  for (int i = 0; i < Count; ++i) stack[i] = pack(outputs.tensors[i]);
}

template <int Count, class Library, int... N>
void register_fixed(Library& library, std::integer_sequence<int, N...>) {
  auto const name = [](int operands) {
    return "region_" + std::to_string(Count) + ".t" + std::to_string(operands);
  };
  (library.impl(name(N).c_str(), &region_fixed<Count, N>), ...);
}

}  // namespace

// The tests build this file for host tensors under another name.
#ifndef COMFUSE_NAMESPACE
#define COMFUSE_NAMESPACE comfuse
#define COMFUSE_DISPATCH_KEY CUDA
#endif

STABLE_TORCH_LIBRARY_IMPL(COMFUSE_NAMESPACE, COMFUSE_DISPATCH_KEY, m) {
  using Arities = std::make_integer_sequence<int, 7>;  // MAX_FIXED of comfuse/ops/schema.py
  m.impl("region", &region<true>);
  m.impl("region.alone", &region<false>);
  m.impl("region_out", &region_out);
  register_fixed<1>(m, Arities{});
  register_fixed<2>(m, Arities{});
}

}  // namespace comfuse::binding
