#include "fallback.h"

#include <torch/csrc/stable/library.h>

#include "errors.h"

namespace comfuse::binding {
namespace {

StableIValue pack(void* handle) { return StableIValue(reinterpret_cast<uintptr_t>(handle)); }

StableIValue new_reference(View const& view) {
  AtenTensorHandle reference;
  check(aoti_torch_new_tensor_handle(view.handle, &reference), "new_tensor_handle");
  return pack(reference);
}

StableIValue pack(double number) {
  StableIValue value;
  static_assert(sizeof(value) == sizeof(number), "a float travels as its bits");
  __builtin_memcpy(&value, &number, sizeof(value));
  return value;
}

}  // namespace

void run_reference(Program const& program, Call const& call, Outputs& outputs) {
  StringHandle spec;
  StableListHandle operands, scalars;
  check(torch_new_string_handle(call.spec.data(), call.spec.size(), &spec), "string");
  check(torch_new_list_reserve_size(size_t(call.operand_count), &operands), "list");
  for (int i = 0; i < call.operand_count; ++i)
    check(torch_list_push_back(operands, new_reference(call.operands[i])), "list");
  check(torch_new_list_reserve_size(size_t(program.scalars), &scalars), "list");
  for (int i = 0; i < program.scalars; ++i)
    check(torch_list_push_back(scalars, pack(call.scalars[i])), "list");
  StableIValue stack[] = {pack(spec), new_reference(call.a), new_reference(call.b), pack(operands),
                          pack(scalars)};
  // The dispatcher owns the stack from here on.
  check(torch_call_dispatcher("comfuse::region_reference", "", stack, TORCH_ABI_VERSION),
        "the reference failed");
  auto const list = reinterpret_cast<StableListHandle>(uintptr_t(stack[0]));
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    StableIValue item;
    check(torch_list_get_item(list, i, &item), "list");
    outputs.tensors[outputs.count++] = reinterpret_cast<AtenTensorHandle>(uintptr_t(item));
  }
  torch_delete_list(list);
}

}  // namespace comfuse::binding
