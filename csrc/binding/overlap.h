// Whether the tensors that a call writes are its own.  comfuse/ops/memory.py has the same rules.
#pragma once

#include "view.h"

namespace comfuse::binding {

// True unless every element of the view surely has a place of its own.
bool may_overlap_itself(View const& view);

// True unless the two surely share no byte: their ranges of memory are apart, or they take different parts of
// each period of a common stride (two slices of the columns of one buffer).
bool may_overlap(View const& x, View const& y);

}  // namespace comfuse::binding
