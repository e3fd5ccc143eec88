// How the factors of the GEMM lie in shared memory, and how wgmma is told.  Compiles for the host too.
//
// A K block of 64 rows of A or B (64 m's or n's by 64 k's of 16 bits) takes 8 KB, 64 lines of 128 bytes, as
// TMA writes them with its 128-byte swizzle.  K-major, a line holds the 64 k's of one row; MN-major, the 64
// rows' elements of one k.  Larger blocks are such blocks one after the other, in either case.
#pragma once

#include <cute/arch/mma_sm90_desc.hpp>

#include "comfuse/program_parts.hpp"

namespace comfuse::sm90 {

constexpr int kLineBytes = 128, kRowsOfBlock = 64, kBlockBytes = kRowsOfBlock * kLineBytes;
constexpr int kWgmmaK = 16;  // products of one wgmma

// `kStep` bytes lie between the k's of one wgmma and those of the next.  A descriptor's leading offset: none
// (1 by convention), or from 64 rows to the next 64; its stride: from eight lines to the next eight.
template <class Major>
struct SharedLayout;
template <>
struct SharedLayout<KMajor> {
  static constexpr int kStep = kWgmmaK * 2, kLeadingBytes = 16, kStrideBytes = 8 * kLineBytes;
};
template <>
struct SharedLayout<MNMajor> {
  static constexpr int kStep = kWgmmaK * kLineBytes, kLeadingBytes = kBlockBytes,
                       kStrideBytes = 8 * kLineBytes;
};

// Of the operand whose first row, at the wgmma's first k, lies at this address.
template <class Major>
CUTE_HOST_DEVICE uint64_t wgmma_descriptor(uint32_t shared_address) {
  cute::GmmaDescriptor d;
  d.bitfield.start_address_ = shared_address >> 4;
  d.bitfield.leading_byte_offset_ = SharedLayout<Major>::kLeadingBytes >> 4;
  d.bitfield.stride_byte_offset_ = SharedLayout<Major>::kStrideBytes >> 4;
  d.bitfield.layout_type_ = 1;  // SWIZZLE_128B
  return d;
}

// The descriptor of what lies `bytes` on.  One addition: shared addresses, in units of 16 bytes, do not carry
// out of their field.
CUTE_HOST_DEVICE uint64_t advance_descriptor(uint64_t descriptor, int bytes) {
  uint32_t const low = uint32_t(descriptor) + (uint32_t(bytes) >> 4);
  return (descriptor >> 32 << 32) | low;
}

}  // namespace comfuse::sm90
