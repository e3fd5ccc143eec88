// How TMA leaves a piece of a tile operand in its slot: 64 rows of 32 columns.  Plainly, where threads read
// runs of eight columns.  Where they read pairs, by ldmatrix, elements are of 16 bits, a row is 64 bytes, and
// the 64-byte swizzle keeps the eight rows that ldmatrix reads at once in different banks.
#pragma once

#include "comfuse/host_device.hpp"

namespace comfuse::sm90 {

constexpr int kSlotRowBytes = 64, kSwizzleBytes = 512;  // after which the swizzle repeats

// Of the `chunk`-th 16 bytes of a row, swizzled: bits 4 and 5 of the address are those of the plain one with
// bits 7 and 8 added modulo 2.  Slots begin at multiples of kSwizzleBytes.
CF_HD constexpr int swizzled_offset(int row, int chunk) {
  return row * kSlotRowBytes + (chunk ^ (row / 2 % 4)) * 16;
}

}  // namespace comfuse::sm90
