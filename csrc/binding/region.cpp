#include "region.h"

#include <limits>
#include <string>

#include "cuda_api.h"
#include "errors.h"
#include "workspace.h"

namespace comfuse::binding {
namespace {

char const* describe(int code) {
  switch (code) {
    case CF_ERROR_ABI: return "it was built against another version of comfuse/abi.h";
    case CF_ERROR_ARGUMENT: return "a pointer or a stride is misaligned, or a size is out of range";
    case CF_ERROR_TENSOR_MAP: return "the driver refused a TMA descriptor";
    case CF_ERROR_DRIVER: return "there is no usable CUDA driver";
    case CF_ERROR_RESIDENCY: return "the GPU cannot hold one row group of tiles at once";
    default: return code > 0 ? cuda().error_string(code) : "unknown error";
  }
}

void check_counts(Program const& program, Call const& call, int required) {
  auto const differ = [](char const* what, int got, size_t allowed) {
    fail("ArgumentError", std::string(what) + " is a list of " + std::to_string(got) +
                              "; allowed: " + std::to_string(allowed));
  };
  if (size_t(call.operand_count) != program.operands.size())
    differ("operands", call.operand_count, program.operands.size());
  if (required >= 0 && size_t(required) != program.outputs.size())
    differ("outputs", required, program.outputs.size());
  // The fixed-arity forms always carry two scalars, used or not.
  if (call.scalar_count < program.scalars) differ("scalars", call.scalar_count, size_t(program.scalars));
}

void launch(Program const& program, Kernel const& kernel, Call& call, int64_t m, Outputs const& outputs) {
  Owned copies;
  CfArgs args{};
  args.abi_version = CF_ABI_VERSION;
  args.m = m;
  args.k = program.k;
  args.a = matrix(call.a, m, program.k, kSlotA, copies);
  args.b = matrix(call.b, program.n, program.k, kSlotB, copies);
  for (int i = 0; i < call.operand_count; ++i) {
    View const& operand = call.operands[i];
    CfSpace const space = program.operands[size_t(i)].space;
    args.operands[i] = space == CF_TILE  ? matrix(operand, m, program.n, kSlotOperand, copies)
                       : space == CF_ROW ? vector(operand, program.n, kSlotOperand, copies)
                                         : vector(operand, m, kSlotOperand, copies);
  }
  for (int i = 0; i < outputs.count; ++i) {
    void* data;
    check(aoti_torch_get_data_ptr(outputs.tensors[i], &data), "data_ptr");
    args.outputs[i] = {data, program.outputs[size_t(i)].space == CF_TILE ? program.n : 1};
  }
  for (int i = 0; i < program.scalars; ++i) args.scalars[i] = float(call.scalars[i]);

  int const device = call.a.device_index;
  Stream stream;
  check(cuda().current_stream(device, &stream), "current CUDA stream");
  bool const capturing = is_capturing(stream);
  void* const workspace = workspace_for(kernel, m, device, stream, capturing);
  int code;
  if (capturing) {
    RelaxedCapture relaxed;  // a first launch loads the kernel's code
    code = kernel.launch(&args, workspace, stream);
  } else {
    code = kernel.launch(&args, workspace, stream);
  }
  if (code != 0) fail("LaunchError", kernel.name + ": " + describe(code));
}

StableIValue pack(AtenTensorHandle tensor) { return StableIValue(reinterpret_cast<uintptr_t>(tensor)); }

StableIValue new_reference(AtenTensorHandle tensor) {
  AtenTensorHandle reference;
  check(aoti_torch_new_tensor_handle(tensor, &reference), "new_tensor_handle");
  return pack(reference);
}

// comfuse::region_reference, which is implemented in Python: counts the fallback and evaluates the spec in
// torch.
void run_reference(Program const& program, Call const& call, Outputs& outputs) {
  StringHandle spec;
  StableListHandle operands, scalars;
  check(torch_new_string_handle(call.spec.data(), call.spec.size(), &spec), "string");
  check(torch_new_list_reserve_size(size_t(call.operand_count), &operands), "list");
  for (int i = 0; i < call.operand_count; ++i)
    check(torch_list_push_back(operands, new_reference(call.operands[i].handle)), "list");
  check(torch_new_list_reserve_size(size_t(program.scalars), &scalars), "list");
  for (int i = 0; i < program.scalars; ++i) {
    StableIValue value;
    static_assert(sizeof(value) == sizeof(double), "a float travels as its bits");
    __builtin_memcpy(&value, &call.scalars[i], sizeof(value));
    check(torch_list_push_back(scalars, value), "list");
  }
  StableIValue stack[] = {StableIValue(reinterpret_cast<uintptr_t>(spec)), new_reference(call.a.handle),
                          new_reference(call.b.handle), StableIValue(reinterpret_cast<uintptr_t>(operands)),
                          StableIValue(reinterpret_cast<uintptr_t>(scalars))};
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

}  // namespace

Outputs::~Outputs() {
  for (int i = 0; i < count; ++i) aoti_torch_delete_tensor_object(tensors[i]);
}

void run(Call& call, int required, Outputs& outputs) {
  if (call.a.device_type != device_type())
    fail("DeviceError", "a is on another device than the other tensors; allowed: one device for all tensors");
  int64_t m = 1;
  for (int64_t i = 0; i + 1 < call.a.rank; ++i) m *= call.a.sizes[i];

  Found const found = find(call.spec, m, call.a.device_index);
  Program const& program = *found.program;
  check_counts(program, call, required);
  check_a(program, call.a);
  check_b(program, call.a, call.b);
  for (int i = 0; i < call.operand_count; ++i) check_operand(program, call.a, m, i, call.operands[i]);
  if (found.kernel == nullptr && m > 0) return run_reference(program, call, outputs);

  DeviceGuard guard(call.a.device_index);
  for (Slot const& slot : program.outputs)
    outputs.tensors[outputs.count++] = new_output(program, call.a, slot);
  if (m > 0) launch(program, *found.kernel, call, m, outputs);
}

}  // namespace comfuse::binding
