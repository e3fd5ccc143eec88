// How the factors of the GEMM lie in shared memory, and how wgmma is told.  Compiles for the host too.
//
// A K block of 64 rows of A or B (64 m's or n's by 64 k's of 16 bits) takes 8 KB, 64 lines of 128 bytes, as
// TMA writes them with its 128-byte swizzle.  K-major, a line holds the 64 k's of one row; MN-major, the 64
// rows' elements of one k.  Larger blocks are such blocks one after the other, in either case.
#pragma once

#include <cstdint>

#include "comfuse/host_device.hpp"
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
CF_HD uint64_t wgmma_descriptor(uint32_t shared_address) {
  // Fields of 14 bits, in units of 16 bytes.
  constexpr uint64_t kSwizzle128 = uint64_t(1) << 62;
  constexpr uint64_t kLeading = SharedLayout<Major>::kLeadingBytes >> 4,
                     kStride = SharedLayout<Major>::kStrideBytes >> 4;
  return kSwizzle128 | kStride << 32 | kLeading << 16 | (shared_address >> 4 & 0x3fff);
}

// The descriptor of what lies `bytes` on.  One addition: shared addresses, in units of 16 bytes, do not carry
// out of their field.
CF_HD uint64_t advance_descriptor(uint64_t descriptor, int bytes) {
  uint32_t const low = uint32_t(descriptor) + (uint32_t(bytes) >> 4);
  return (descriptor >> 32 << 32) | low;
}

}  // namespace comfuse::sm90
