// What a generated kernel includes.  Read on: kernel.hpp -> mainloop.hpp, epilogue.hpp -> fragment.hpp,
// row_group.hpp -> monoids.hpp, functors.hpp.
#pragma once

#include "comfuse/sm90/launch.hpp"
