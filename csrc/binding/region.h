// One call of a fused region: look up, check, allocate, launch.
#pragma once

#include <comfuse/abi.h>
#include <torch/csrc/stable/c/shim.h>

#include <string_view>

#include "tensors.h"

namespace comfuse::binding {

struct Call {
  std::string_view spec;
  View a, b;
  int operand_count = 0;
  int scalar_count = 0;
  View operands[CF_MAX_OPERANDS];
  double scalars[CF_MAX_SCALARS];
};

struct Outputs {
  int count = 0;
  AtenTensorHandle tensors[CF_MAX_OUTPUTS];

  Outputs() = default;
  ~Outputs();  // releases what was not handed over
  Outputs(Outputs const&) = delete;
  Outputs& operator=(Outputs const&) = delete;
};

// Fills `outputs` with new tensors, on the current stream of a's device.  `required` is the number of outputs
// that the caller can return, or -1.  Throws typed messages (errors.h).
void run(Call& call, int required, Outputs& outputs);

}  // namespace comfuse::binding
