// What a generated kernel includes.  Read on: launch.hpp -> tensor_maps.hpp, workspace.hpp for the host;
// kernel.hpp -> scheduler.hpp, mainloop.hpp -> shared_layout.hpp, transpose.hpp for the GEMM;
// epilogue.hpp -> fragment.hpp -> fragment_layout.hpp, functors.hpp and accumulate.hpp for the program;
// row_group.hpp, column_group.hpp, row_tail.hpp, collector.hpp -> monoids.hpp for reductions beyond a tile.
#pragma once

#include "comfuse/sm90/launch.hpp"
