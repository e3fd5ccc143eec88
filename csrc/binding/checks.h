// The rules for a call's tensors: shapes, dtypes, devices.  comfuse/ops/checks.py has the same for tensors
// that do not get here; both say what is allowed in the words of the program's slots (CfSlot::allowed).
#pragma once

#include <stdint.h>

#include "table.h"
#include "view.h"

namespace comfuse::binding {

// The rows of a call.
struct Extent {
  int64_t m = 1;  // of a batch
  int64_t batches = 1;

  // What kernels are chosen by: all rows, those that pad a batch to whole row blocks included.
  int64_t rows() const { return batches == 1 ? m : batches * row_blocks() * kBlockRows; }
  int64_t row_blocks() const { return (m + kBlockRows - 1) / kBlockRows; }  // of a batch
  bool empty() const { return m == 0 || batches == 0; }

  static constexpr int64_t kBlockRows = 128;
};

Extent check_a(Program const& program, View const& a);
void check_b(Program const& program, Slot const& slot, View const& a, View const& b);
void check_operand(Program const& program, Extent const& extent, View const& a, Slot const& slot,
                   View const& operand);
// A tensor of the caller's that takes an output.
void check_output(Program const& program, View const& a, int index, View const& output);

// Whether the dimensions of a view match the last ones of `sizes`, each equal to it or 1.
bool broadcasts(View const& view, int64_t const* sizes, int64_t rank);

// The shape of an output: a's leading sizes and what its space adds.
Shape output_shape(Program const& program, Slot const& slot, View const& a);

}  // namespace comfuse::binding
