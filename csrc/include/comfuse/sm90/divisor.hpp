// Division by a number that the host knows at launch: a multiplication and a shift.
#pragma once

#include <stdint.h>

#include "comfuse/host_device.hpp"

namespace comfuse::sm90 {

// Exact for 0 <= n < 2^31 and 0 < value < 2^31 (Granlund and Montgomery, "Division by invariant integers
// using multiplication", 1994): with 2^shift >= value, multiplier * value exceeds 2^(31 + shift) by less than
// 2^shift.
struct Divisor {
  uint32_t value, multiplier, shift;

  static Divisor of(uint32_t value) {
    uint32_t shift = 0;
    while ((uint64_t(1) << shift) < value) ++shift;
    uint64_t const power = uint64_t(1) << (31 + shift);
    return {value, uint32_t((power + value - 1) / value), shift};
  }
  CF_HD uint32_t divide(uint32_t n) const { return uint32_t(uint64_t(2 * n) * multiplier >> 32) >> shift; }
};

}  // namespace comfuse::sm90
