// What a generated kernel of two GEMMs includes.  Read on: chain_kernel.hpp -> chain_mainloop.hpp ->
// chain_factors.hpp for the GEMMs, chain_middle.hpp for the program between them, epilogue.hpp for the one
// behind; chain_launch.hpp -> launch.hpp for the host.
#pragma once

#include "comfuse/sm90/chain_launch.hpp"
