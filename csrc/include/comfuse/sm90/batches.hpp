// Where a batch's part of a tensor begins.  Batches come in two levels of strides, as abi.h has them: heads
// in sequences, and what repeats over either.
#pragma once

#include <type_traits>

#include "comfuse/abi.h"
#include "comfuse/sm90/divisor.hpp"

namespace comfuse::sm90 {

// batch / period * outer + batch % period * inner, as the sum of batch * inner, batch / period * outer and
// -(batch / period) * period * inner, which may wrap around.
template <class Offset>
struct BatchSteps {
  using Bits = typename std::make_unsigned<Offset>::type;
  Divisor period;
  Bits step, further;

  CF_HD Offset of(int batch) const { return Offset(Bits(batch) * step + period.divide(batch) * further); }

  static BatchSteps of(Divisor period, Offset outer, Offset inner) {
    return {period, Bits(inner), Bits(outer) - period.value * Bits(inner)};
  }
};

// How many batches the inner level has.
inline uint32_t inner_batches(CfTensor const& tensor, int64_t batches) {
  return uint32_t(tensor.batch_period < batches ? tensor.batch_period : batches);
}
inline BatchSteps<int64_t> batch_steps(CfTensor const& tensor, int64_t batches) {
  return BatchSteps<int64_t>::of(Divisor::of(inner_batches(tensor, batches)), tensor.batch_outer,
                                 tensor.batch_stride);
}

// The same for TMA, which knows one stride from matrix to matrix: the greatest that makes both levels whole
// numbers of matrices.
struct Matrices {
  int64_t stride = 0;  // 0: all batches share the one matrix that there is
  int64_t count = 1;   // from the first to behind the last one that is read
  BatchSteps<int> steps;

  Matrices(CfTensor const& tensor, int64_t batches) {
    int64_t const inner_count = inner_batches(tensor, batches);
    int64_t const outer_count = (batches + inner_count - 1) / inner_count;
    int64_t const inner = inner_count > 1 ? tensor.batch_stride : 0;
    int64_t const outer = outer_count > 1 ? tensor.batch_outer : 0;
    stride = greatest_divisor(inner, outer);
    int64_t const inner_step = stride ? inner / stride : 0, outer_step = stride ? outer / stride : 0;
    count += (inner_count - 1) * inner_step + (outer_count - 1) * outer_step;
    steps = BatchSteps<int>::of(Divisor::of(uint32_t(inner_count)), int(outer_step), int(inner_step));
  }
  // What the kernel's integers can count.
  bool are_countable() const { return count <= INT32_MAX; }

 private:
  static int64_t greatest_divisor(int64_t a, int64_t b) {
    while (b != 0) {
      int64_t const rest = a % b;
      a = b, b = rest;
    }
    return a;
  }
};

}  // namespace comfuse::sm90
