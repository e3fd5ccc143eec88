// Stands in for CuTe's header on the host: its descriptor's bits, which tests/build/host compares with
// CuTe's.
#pragma once

#include "cuda_runtime.h"

#define CUTE_HOST_DEVICE inline

namespace cute {
union GmmaDescriptor {
  GmmaDescriptor() : bits(0) {}
  operator uint64_t() const { return bits; }
  uint64_t bits;
  struct {
    uint16_t start_address_ : 14, : 2;
    uint16_t leading_byte_offset_ : 14, : 2;
    uint16_t stride_byte_offset_ : 14, : 2;
    uint8_t : 1, base_offset_ : 3, : 4;
    uint8_t : 6, layout_type_ : 2;
  } bitfield;
};
}  // namespace cute
