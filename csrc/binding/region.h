// One call of a fused region: look up, check, allocate, launch.
#pragma once

#include <comfuse/abi.h>
#include <torch/csrc/stable/c/shim.h>

#include <string_view>

#include "view.h"

namespace comfuse::binding {

// The operands of a call: all factors B but the first, and the operands of the spec (Slot::place).
constexpr int kMaxTensors = CF_MAX_OPERANDS + CF_MAX_FACTORS - 1;

struct Call {
  std::string_view spec;
  View a, b;
  int operand_count = 0;
  int scalar_count = 0;
  View operands[kMaxTensors];
  double scalars[CF_MAX_SCALARS];
};

// New tensors, which belong to this until they are taken.
struct Outputs {
  int count = 0;
  AtenTensorHandle tensors[CF_MAX_OUTPUTS];

  Outputs() = default;
  ~Outputs();
  Outputs(Outputs const&) = delete;
  Outputs& operator=(Outputs const&) = delete;
};

// Both run on the current stream of a's device and throw typed messages (errors.h).

// Fills `outputs` with new tensors.  `required` is the number of outputs that the caller can return, or -1.
void run(Call const& call, int required, Outputs& outputs);

// Writes to the caller's tensors.
void run_into(Call const& call, View const* outputs, int count);

}  // namespace comfuse::binding
