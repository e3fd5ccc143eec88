#include "region.h"

#include <string>

#include "checks.h"
#include "cuda_api.h"
#include "errors.h"
#include "fallback.h"
#include "layout.h"
#include "overlap.h"
#include "workspace.h"

namespace comfuse::binding {
namespace {

char const* describe(int code) {
  switch (code) {
    case CF_ERROR_ABI: return "it was built against another version of comfuse/abi.h";
    case CF_ERROR_ARGUMENT: return "a pointer or a stride is misaligned, or a size is out of range";
    case CF_ERROR_TENSOR_MAP: return "the driver refused a TMA descriptor";
    case CF_ERROR_DRIVER: return "there is no usable CUDA driver";
    case CF_ERROR_RESIDENCY: return "the GPU cannot hold all tiles at once that wait for each other";
    default: return code > 0 ? cuda().error_string(code) : "unknown error";
  }
}

void check_count(char const* what, int64_t got, int64_t allowed) {
  if (got != allowed)
    fail("ArgumentError", std::string(what) + " is a list of " + std::to_string(got) +
                              "; allowed: " + std::to_string(allowed));
}

// A call whose arguments were checked, and the kernel that serves it.
struct Checked {
  Call const& call;
  Program const& program;
  Extent extent;
  Kernel const* kernel;  // null: the reference is to run, or there is nothing to do

  View const& operand(size_t index) const { return call.operands[program.operands[index].place]; }
  View const& factor(size_t index) const {
    int const place = program.b[index].place;
    return place < 0 ? call.b : call.operands[place];
  }
  // Where there are no rows, only what is over all rows has a value, which the reference finds.
  bool needs_reference() const { return kernel == nullptr && (!extent.empty() || program.reduces_rows); }
};

Checked check_call(Call const& call, int required) {
  if (call.a.device_type != device_type())
    fail("DeviceError", "a is on another device than the other tensors; allowed: one device for all tensors");
  Entry const& entry = find_program(call.spec, call.a.device_index);
  Checked checked{call, entry.program, {}, nullptr};
  Program const& program = checked.program;
  check_count("operands", call.operand_count, int64_t(program.operands.size() + program.b.size()) - 1);
  if (required >= 0) check_count("outputs", required, int64_t(program.outputs.size()));
  // The fixed-arity forms always carry two scalars, used or not.
  if (call.scalar_count < program.scalars) check_count("scalars", call.scalar_count, program.scalars);
  checked.extent = check_a(program, call.a);
  for (size_t i = 0; i < program.b.size(); ++i) check_b(program, program.b[i], call.a, checked.factor(i));
  for (size_t i = 0; i < program.operands.size(); ++i)
    check_operand(program, checked.extent, call.a, program.operands[i], checked.operand(i));
  if (!checked.extent.empty())
    checked.kernel = find_kernel(entry, checked.extent.rows(), call.a.device_index);
  return checked;
}

void launch(Checked const& checked, CfTensor const* outputs) {
  auto const& [call, program, extent, kernel] = checked;
  Owned copies;
  CfArgs args{};
  args.abi_version = CF_ABI_VERSION;
  args.m = extent.m;
  args.k = program.a.k;
  args.batches = extent.batches;
  args.a = factor_a(program, extent, program.a, call.a, copies);
  CfTensor* b = args.b;
  for (size_t i = 0; i < program.b.size(); ++i) {
    Slot const& slot = program.b[i];
    if (is_a(slot)) {
      args.k1 = slot.k;
      args.a1 = factor_a(program, extent, slot, checked.factor(i), copies);
    } else {
      *b++ = factor_b(extent, slot, checked.factor(i), copies);
    }
  }
  for (size_t i = 0; i < program.operands.size(); ++i)
    args.operands[i] = operand(program, extent, call.a, program.operands[i], checked.operand(i), copies);
  for (size_t i = 0; i < program.outputs.size(); ++i) args.outputs[i] = outputs[i];
  for (int i = 0; i < program.scalars; ++i) args.scalars[i] = float(call.scalars[i]);

  int const device = call.a.device_index;
  Stream stream;
  check(cuda().current_stream(device, &stream), "current CUDA stream");
  bool const capturing = is_capturing(stream);
  void* const workspace = workspace_for(*kernel, extent, device, stream, capturing);
  int code;
  if (capturing) {
    RelaxedCapture relaxed;  // a first launch loads the kernel's code
    code = kernel->launch(&args, workspace, stream);
  } else {
    code = kernel->launch(&args, workspace, stream);
  }
  if (code != 0) fail("LaunchError", kernel->name + ": " + describe(code));
}

Shape shape_of(View const& view) {
  Shape shape;
  for (int64_t i = 0; i < view.rank; ++i) {
    shape.strides[i] = view.strides[i];
    shape.append(view.sizes[i]);
  }
  return shape;
}

void check_memory(std::string const& name, View const& output, std::string const& other_name,
                  View const& other) {
  if (may_overlap(output, other))
    fail("ArgumentError",
         name + " is in memory that " + other_name + " is in too; allowed: memory of its own");
}

void check_outputs(Checked const& checked, View const* outputs, int count) {
  auto const name = [](int i) { return "out[" + std::to_string(i) + "]"; };
  Program const& program = checked.program;
  check_count("out", count, int64_t(program.outputs.size()));
  for (int i = 0; i < count; ++i) check_output(program, checked.call.a, i, outputs[i]);
  for (int i = 0; i < count; ++i) {
    View const& output = outputs[i];
    if (may_overlap_itself(output))
      fail("ArgumentError", name(i) + " is of strides " + tuple_text(output.strides, output.rank) +
                                "; allowed: strides that give each element a place of its own");
    check_memory(name(i), output, program.a.name, checked.call.a);
    for (size_t f = 0; f < program.b.size(); ++f)
      check_memory(name(i), output, program.b[f].name, checked.factor(f));
    for (size_t o = 0; o < program.operands.size(); ++o)
      check_memory(name(i), output, program.operands[o].name, checked.operand(o));
    for (int other = 0; other < i; ++other) check_memory(name(i), output, name(other), outputs[other]);
  }
}

}  // namespace

Outputs::~Outputs() {
  for (int i = 0; i < count; ++i) aoti_torch_delete_tensor_object(tensors[i]);
}

void run(Call const& call, int required, Outputs& outputs) {
  Checked const checked = check_call(call, required);
  if (checked.needs_reference()) return run_reference(checked.program, call, outputs);

  DeviceGuard guard(call.a.device_index);
  CfTensor stored[CF_MAX_OUTPUTS];
  for (Slot const& slot : checked.program.outputs) {
    Shape shape = output_shape(checked.program, slot, call.a);
    shape.make_contiguous();
    int const i = outputs.count;
    outputs.tensors[i] = empty(shape, torch_dtype(slot.dtype), call.a);
    ++outputs.count;
    if (checked.kernel != nullptr)
      stored[i] = output(checked.program, checked.extent, i, shape, data_of(outputs.tensors[i]));
  }
  if (checked.kernel != nullptr) launch(checked, stored);
}

void run_into(Call const& call, View const* outputs, int count) {
  Checked const checked = check_call(call, -1);
  check_outputs(checked, outputs, count);
  CfTensor stored[CF_MAX_OUTPUTS];
  for (int i = 0; i < count && !checked.extent.empty(); ++i)
    stored[i] = output(checked.program, checked.extent, i, shape_of(outputs[i]), outputs[i].data);
  DeviceGuard guard(call.a.device_index);
  if (checked.kernel != nullptr) return launch(checked, stored);
  if (!checked.needs_reference()) return;
  Outputs computed;
  run_reference(checked.program, call, computed);
  for (int i = 0; i < count; ++i) check(aoti_torch_copy_(outputs[i].handle, computed.tensors[i], 0), "copy_");
}

}  // namespace comfuse::binding
