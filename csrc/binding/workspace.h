// The small global buffers through which the tiles of a row exchange partial results.
//
// A kernel leaves its workspace ready for its next launch with as many row blocks, in the order of one
// stream. So a workspace belongs to (kernel, device, stream, row blocks), and a launch captured in a CUDA
// graph, which may be replayed on any stream at any time, has one of its own for as long as the graph lives.
#pragma once

#include <stdint.h>

#include "checks.h"
#include "cuda_api.h"
#include "table.h"

namespace comfuse::binding {

// A zeroed workspace for a launch of `kernel` with these rows on `stream` of the current device, or null if
// the kernel needs none.  `capturing`: the stream is being captured (see is_capturing).
void* workspace_for(Kernel const& kernel, Extent const& extent, int device, Stream stream, bool capturing);

bool is_capturing(Stream stream);

}  // namespace comfuse::binding
