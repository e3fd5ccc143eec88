// What a generated kernel of GEMMs back to back includes.  Read on: chain_kernel.hpp -> chain_mainloop.hpp ->
// chain_factors.hpp for the first two GEMMs, chain_further.hpp for a third, chain_middle.hpp for the programs
// between them, epilogue.hpp for the one behind; chain_launch.hpp -> launch.hpp for the host.
#pragma once

#include "comfuse/sm90/chain_launch.hpp"
