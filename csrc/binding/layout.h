// From torch tensors to the pointers and strides of abi.h.  What a kernel cannot read in place is copied
// first, which is counted (see comfuse_copies); `copies` keeps the copy for the length of the call.
#pragma once

#include <comfuse/abi.h>
#include <stdint.h>

#include "checks.h"
#include "table.h"
#include "view.h"

namespace comfuse::binding {

CfTensor factor_a(Program const& program, Extent const& extent, Slot const& slot, View const& a,
                  Owned& copies);
CfTensor factor_b(Extent const& extent, Slot const& slot, View const& b, Owned& copies);
CfTensor operand(Program const& program, Extent const& extent, View const& a, Slot const& slot,
                 View const& view, Owned& copies);

// An output of a kernel.  `shape` is that of output_shape, with the strides of the tensor.
CfTensor output(Program const& program, Extent const& extent, int index, Shape const& shape, void* data);

}  // namespace comfuse::binding
