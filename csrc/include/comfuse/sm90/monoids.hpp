// Row reductions, each in three steps of fixed order: a thread over its own elements of a row
// (Thread), four threads of a row into the tile's State, tiles in index order (Merger).
//
// A State travels between CTAs as one 64-bit word with a one-bit tag in it (row_group.hpp).
#pragma once

#include "comfuse/functors.hpp"
#include "comfuse/program.hpp"
#include "comfuse/sm90/instructions.hpp"

namespace comfuse {

namespace sm90 {
CF_DEVICE uint64_t make_word(float low, float high) {
  return uint64_t(__float_as_uint(low)) | uint64_t(__float_as_uint(high)) << 32;
}
CF_DEVICE float word_low(uint64_t w) { return __uint_as_float(uint32_t(w)); }
CF_DEVICE float word_high(uint64_t w) { return __uint_as_float(uint32_t(w >> 32)); }

// What the one-number reductions share.  The value has the word's low half to itself, so the tag
// never touches it.
template <class Op>
struct OneNumber {
  struct State {
    float value;
    CF_DEVICE uint64_t pack() const { return make_word(value, 0.f); }
    CF_DEVICE static State unpack(uint64_t w) { return {word_low(w)}; }
    CF_DEVICE State shuffle_xor(int mask) const { return {__shfl_xor_sync(kFullWarp, value, mask)}; }
    template <Field F>
    CF_DEVICE float get(float /*1/N*/) const {
      static_assert(F == Field::value, "this reduction has one field, `value`");
      return value;
    }
  };
  struct Thread {
    float value = Op::identity();
    CF_DEVICE void add(float x, bool /*first*/) { value = Op::step(value, x); }
    CF_DEVICE State finish(float /*count*/) const { return {value}; }
  };
  CF_DEVICE static State merge(State a, State b, float /*counts*/, float) {
    return {Op::merge(a.value, b.value)};
  }
  struct Merger {
    float value = Op::identity();
    CF_DEVICE void add(State s, float /*count*/, bool /*first*/) { value = Op::merge(value, s.value); }
    CF_DEVICE State finish(float /*1/N*/) const { return {value}; }
  };
};
struct SumOp {
  CF_DEVICE static float identity() { return 0.f; }
  CF_DEVICE static float step(float s, float x) { return s + x; }
  CF_DEVICE static float merge(float a, float b) { return a + b; }
};
struct SumSqOp : SumOp {
  CF_DEVICE static float step(float s, float x) { return fmaf(x, x, s); }
};
struct MaxOp {
  CF_DEVICE static float identity() { return -INFINITY; }
  CF_DEVICE static float step(float s, float x) { return fn::Maximum::apply(s, x); }
  CF_DEVICE static float merge(float a, float b) { return fn::Maximum::apply(a, b); }
};
struct MinOp {
  CF_DEVICE static float identity() { return INFINITY; }
  CF_DEVICE static float step(float s, float x) { return fn::Minimum::apply(s, x); }
  CF_DEVICE static float merge(float a, float b) { return fn::Minimum::apply(a, b); }
};
}  // namespace sm90

struct Sum : sm90::OneNumber<sm90::SumOp> {};
struct SumSq : sm90::OneNumber<sm90::SumSqOp> {};
struct Max : sm90::OneNumber<sm90::MaxOp> {};
struct Min : sm90::OneNumber<sm90::MinOp> {};

// Mean and sum of squared deviations.  Sums are shifted by one of the summands (Chan, Golub, LeVeque,
// "Algorithms for computing the sample variance", 1983): since the shift is itself a datum, the
// squared deviation of the shift is part of the result, and cancellation costs at most a factor of
// the count, however far the mean is from zero.
struct Welford {
  struct State {
    float mean, m2;
    CF_DEVICE uint64_t pack() const { return sm90::make_word(mean, m2); }
    CF_DEVICE static State unpack(uint64_t w) { return {sm90::word_low(w), sm90::word_high(w)}; }
    CF_DEVICE State shuffle_xor(int mask) const {
      return {__shfl_xor_sync(sm90::kFullWarp, mean, mask), __shfl_xor_sync(sm90::kFullWarp, m2, mask)};
    }
    template <Field F>
    CF_DEVICE float get(float inverse_n) const {
      static_assert(F != Field::value, "Welford has the fields `mean` and `variance`");
      return F == Field::mean ? mean : m2 * inverse_n;
    }
  };
  struct Thread {
    float shift = 0.f, sum = 0.f, squares = 0.f;
    CF_DEVICE void add(float x, bool first) {
      if (first) shift = x;
      float d = x - shift;
      sum += d;
      squares = fmaf(d, d, squares);
    }
    CF_DEVICE State finish(float count) const {
      float const d = count > 0.f ? sum / count : 0.f;
      // max keeps a rounding error from making the variance negative; NaN passes through.
      return {shift + d, fn::Maximum::apply(fmaf(-sum, d, squares), 0.f)};
    }
  };
  // Chan's merge.  Where two threads merge the same row, the lower one's result counts.
  CF_DEVICE static State merge(State a, State b, float count_a, float count_b) {
    float const count = count_a + count_b, inverse = count > 0.f ? 1.f / count : 0.f;
    float const d = a.mean - b.mean;
    return {(count_a * a.mean + count_b * b.mean) * inverse,
            fmaf(d * (count_a * count_b * inverse), d, a.m2 + b.m2)};
  }
  struct Merger {  // the same shifted sums over tile means, weighted by their counts
    float shift = 0.f, sum = 0.f, squares = 0.f, within = 0.f;
    CF_DEVICE void add(State s, float count, bool first) {
      if (first) shift = s.mean;
      float d = s.mean - shift, wd = count * d;
      sum += wd;
      squares = fmaf(wd, d, squares);
      within += s.m2;
    }
    CF_DEVICE State finish(float inverse_n) const {
      float d = sum * inverse_n;
      return {shift + d, within + fn::Maximum::apply(fmaf(-sum, d, squares), 0.f)};
    }
  };
};

}  // namespace comfuse
