// Where a thread finds its runs of eight columns in a 16-bit tile of 64 rows: in slots, each of 32 columns,
// or in X's rows as wgmma reads them, in blocks of 64 columns with the 128-byte swizzle.  Two slots in a row
// take what a block does, so that both are the same addresses and a step.
#pragma once

#include "comfuse/sm90/fragment_layout.hpp"
#include "comfuse/sm90/shared_layout.hpp"

namespace comfuse::sm90 {

class ThreadRuns {
 public:
  // `row`: the first of the warp's 16 rows.
  CF_DEVICE void locate(uint8_t const* tile, bool swizzled, int row) {
    int const line = row + lane_id() / 4, quarter = lane_id() % 4;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      int const in_rows = line * kLineBytes + ((4 * part + quarter) ^ line % 8) * 16;
      int const in_slots = part * kBlockBytes / 2 + line * kSlotRowBytes + quarter * 16;
      first_[part] = tile + (swizzled ? in_rows : in_slots);
    }
    step_of_half_ = 8 * (swizzled ? kLineBytes : kSlotRowBytes);
  }
  // `column`: the first of the fragment's 32.
  template <class T>
  CF_DEVICE Block<T> load(int column, int half) const {
    static_assert(sizeof(T) == 2);
    auto const* run = first_[column / 32 % 2] + column / 64 * kBlockBytes + half * step_of_half_;
    return load_block(reinterpret_cast<T const*>(run));
  }

 private:
  uint8_t const* first_[2];  // of the first and of the second 32 columns of 64
  int step_of_half_;
};

}  // namespace comfuse::sm90
