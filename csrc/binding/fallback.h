// Where no kernel serves a call.
#pragma once

#include "region.h"
#include "table.h"

namespace comfuse::binding {

// Runs comfuse::region_reference, which is implemented in Python: it counts the fallback and evaluates the
// spec in torch.
void run_reference(Program const& program, Call const& call, Outputs& outputs);

}  // namespace comfuse::binding
