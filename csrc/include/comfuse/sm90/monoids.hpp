// Reductions, each in three steps of fixed order: a thread over its own elements (Thread), threads and warps
// into the State of a tile (merge), tiles in index order (Merger).  The same types serve rows, groups of
// columns, columns and the whole.
//
// A monoid M has:
//   M::State     A partial result.  It travels between CTAs as one 64-bit word, `pack` and `unpack`, with a
//                one-bit tag in the lowest bit of the high half (exchange.hpp): whatever must survive
//                exactly lies elsewhere.  `get<field>(1 / count)` reads the finished one.
//   M::Thread    add(x, first, offset)     one element; `first` at the thread's first one
//                add_run(x, first, offset) eight, at offset, offset + 1, ...: as add, but often cheaper
//                finish(count, base)       the State of `count` elements; offsets count from `base`
//                Elements come in order of their offsets, which only ArgMax and ArgMin read.
//   M::merge(a, b, count_a, count_b)       commutative but for rounding
//   M::Merger    add(state, count, first), in index order; finish(1 / count)
// A State of no elements, with count 0, changes nothing that it is merged with.
#pragma once

#include <float.h>

#include "comfuse/functors.hpp"
#include "comfuse/program_parts.hpp"
#include "comfuse/sm90/instructions.hpp"

namespace comfuse {

namespace sm90 {
CF_DEVICE uint64_t make_word(float low, float high) {
  return uint64_t(__float_as_uint(low)) | uint64_t(__float_as_uint(high)) << 32;
}
CF_DEVICE float word_low(uint64_t w) { return __uint_as_float(uint32_t(w)); }
CF_DEVICE float word_high(uint64_t w) { return __uint_as_float(uint32_t(w >> 32)); }

// add_run for a Thread that gains nothing from it.
template <class Thread>
struct OneByOne {
  CF_DEVICE void add_run(float const (&x)[8], bool first, int offset) {
#pragma unroll
    for (int i = 0; i < 8; ++i) static_cast<Thread*>(this)->add(x[i], first && i == 0, offset + i);
  }
};

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
    CF_DEVICE float get(float /*1 / count*/) const {
      static_assert(F == Field::value, "this reduction has one field, `value`");
      return value;
    }
  };
  struct Thread : OneByOne<Thread> {
    float value = Op::identity();
    CF_DEVICE void add(float x, bool /*first*/, int /*offset*/) { value = Op::step(value, x); }
    CF_DEVICE State finish(float /*count*/, int /*base*/ = 0) const { return {value}; }
  };
  CF_DEVICE static State merge(State a, State b, float /*counts*/, float) {
    return {Op::merge(a.value, b.value)};
  }
  struct Merger {
    float value = Op::identity();
    CF_DEVICE void add(State s, float /*count*/, bool /*first*/) { value = Op::merge(value, s.value); }
    CF_DEVICE State finish(float /*1 / count*/) const { return {value}; }
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
struct ProdOp {
  CF_DEVICE static float identity() { return 1.f; }
  CF_DEVICE static float step(float s, float x) { return s * x; }
  CF_DEVICE static float merge(float a, float b) { return a * b; }
};
struct MaxOp {
  CF_DEVICE static float identity() { return -INFINITY; }
  CF_DEVICE static float step(float s, float x) { return fn::Maximum::apply(s, x); }
  CF_DEVICE static float merge(float a, float b) { return fn::Maximum::apply(a, b); }
  // NaN exceeds all.
  CF_DEVICE static bool exceeds(float x, float best) { return !(x <= best) && best == best; }
};
struct MinOp {
  CF_DEVICE static float identity() { return INFINITY; }
  CF_DEVICE static float step(float s, float x) { return fn::Minimum::apply(s, x); }
  CF_DEVICE static float merge(float a, float b) { return fn::Minimum::apply(a, b); }
  CF_DEVICE static bool exceeds(float x, float best) { return !(x >= best) && best == best; }
};

// The index of the extreme element: of the first of several that are equal, and of the first NaN if there
// is one.
template <class Op>
struct IndexOf {
  struct State {
    float value;
    int index;
    // Doubled, the index leaves the tag's bit free.
    CF_DEVICE uint64_t pack() const {
      return uint64_t(__float_as_uint(value)) | uint64_t(uint32_t(index) << 1) << 32;
    }
    CF_DEVICE static State unpack(uint64_t w) { return {word_low(w), int(uint32_t(w >> 32) >> 1)}; }
    CF_DEVICE State shuffle_xor(int mask) const {
      return {__shfl_xor_sync(kFullWarp, value, mask), __shfl_xor_sync(kFullWarp, index, mask)};
    }
    template <Field F>
    CF_DEVICE float get(float /*1 / count*/) const {
      static_assert(F == Field::value, "this reduction has one field, `value`: the index");
      return float(index);
    }
  };
  struct Thread : OneByOne<Thread> {
    float value = Op::identity();
    int index = 0;
    CF_DEVICE void add(float x, bool first, int offset) {
      bool const taken = first || Op::exceeds(x, value);
      value = taken ? x : value;
      index = taken ? offset : index;
    }
    CF_DEVICE State finish(float count, int base = 0) const {
      return {value, count > 0.f ? base + index : kNone};
    }
  };
  CF_DEVICE static State merge(State a, State b, float /*counts*/, float) {
    bool const equal = !Op::exceeds(a.value, b.value) && !Op::exceeds(b.value, a.value);
    return Op::exceeds(b.value, a.value) || (equal && b.index < a.index) ? b : a;
  }
  struct Merger {
    State best{Op::identity(), kNone};
    CF_DEVICE void add(State s, float count, bool /*first*/) { best = merge(best, s, 0.f, count); }
    CF_DEVICE State finish(float /*1 / count*/) const { return best; }
  };

 private:
  static constexpr int kNone = 0x7fffffff;  // behind every index
};
}  // namespace sm90

struct Sum : sm90::OneNumber<sm90::SumOp> {};
struct SumSq : sm90::OneNumber<sm90::SumSqOp> {};
struct Prod : sm90::OneNumber<sm90::ProdOp> {};  // in float32: a part may overflow where the whole would not
struct Max : sm90::OneNumber<sm90::MaxOp> {};
struct Min : sm90::OneNumber<sm90::MinOp> {};
struct ArgMax : sm90::IndexOf<sm90::MaxOp> {};
struct ArgMin : sm90::IndexOf<sm90::MinOp> {};
template <class Monoid>
constexpr bool kReadsOffsets = std::is_same<Monoid, ArgMax>::value || std::is_same<Monoid, ArgMin>::value;

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
    CF_DEVICE float get(float inverse_count) const {
      static_assert(F == Field::mean || F == Field::variance, "Welford has the fields `mean`, `variance`");
      return F == Field::mean ? mean : m2 * inverse_count;
    }
  };
  struct Thread : sm90::OneByOne<Thread> {
    float shift = 0.f, sum = 0.f, squares = 0.f;
    CF_DEVICE void add(float x, bool first, int /*offset*/) {
      if (first) shift = x;
      float d = x - shift;
      sum += d;
      squares = fmaf(d, d, squares);
    }
    CF_DEVICE State finish(float count, int /*base*/ = 0) const {
      // The reciprocal of a known count is a constant; a quotient would be a call, around which ptxas spills.
      float const d = count > 0.f ? sum * (1.f / count) : 0.f;
      // max keeps a rounding error from making the variance negative; NaN passes through.
      return {shift + d, fn::Maximum::apply(fmaf(-sum, d, squares), 0.f)};
    }
  };
  // Chan's merge.  Where two threads merge the same row, the lower one's result counts.
  CF_DEVICE static State merge(State a, State b, float count_a, float count_b) {
    float const count = count_a + count_b, inverse = count > 0.f ? 1.f / count : 0.f;
    float const d = b.mean - a.mean;
    return {fmaf(d, count_b * inverse, a.mean), fmaf(d * (count_a * count_b * inverse), d, a.m2 + b.m2)};
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
    CF_DEVICE State finish(float inverse_count) const {
      float d = sum * inverse_count;
      return {shift + d, within + fn::Maximum::apply(fmaf(-sum, d, squares), 0.f)};
    }
  };
};

// Maximum and sum of exp(x - maximum), in one pass: what has been summed is rescaled when the maximum grows
// (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
//
// As in torch.softmax, the sum is NaN where the maximum is infinite; as in torch.logsumexp, `lse` is then
// the maximum.
struct Softmax {
  struct State {
    float maximum, sum;
    CF_DEVICE uint64_t pack() const { return sm90::make_word(maximum, sum); }
    CF_DEVICE static State unpack(uint64_t w) { return {sm90::word_low(w), sm90::word_high(w)}; }
    CF_DEVICE State shuffle_xor(int mask) const {
      return {__shfl_xor_sync(sm90::kFullWarp, maximum, mask), __shfl_xor_sync(sm90::kFullWarp, sum, mask)};
    }
    template <Field F>
    CF_DEVICE float get(float /*1 / count*/) const {
      static_assert(F == Field::maximum || F == Field::sumexp || F == Field::lse,
                    "Softmax has the fields `maximum`, `sumexp`, `lse`");
      bool const infinite = fabsf(maximum) == INFINITY;
      if constexpr (F == Field::sumexp) return infinite ? NAN : sum;
      if constexpr (F == Field::lse) return infinite ? maximum : maximum + fn::Log::apply(sum);
      return maximum;
    }
    // Takes in `others`, a sum of exp(x - others_maximum).
    CF_DEVICE void add(float others_maximum, float others) {
      float const old = maximum;
      maximum = fn::Maximum::apply(maximum, others_maximum);
      float const shift = finite(maximum);
      sum = fmaf(sum, exp(finite(old) - shift), others * exp(finite(others_maximum) - shift));
    }
  };
  struct Thread : State {
    CF_DEVICE Thread() : State{-INFINITY, 0.f} {}
    // One exponential, of whichever of x and the maximum so far is the smaller.
    CF_DEVICE void add(float x, bool /*first*/, int /*offset*/) {
      float const d = x - finite(this->maximum), e = exp(-fabsf(d));
      this->sum = d > 0.f ? fmaf(this->sum, e, 1.f) : this->sum + e;
      this->maximum = fn::Maximum::apply(this->maximum, x);
    }
    CF_DEVICE void add_run(float const (&x)[8], bool /*first*/, int /*offset*/) {
      float const old = finite(this->maximum);
#pragma unroll
      for (int i = 0; i < 8; ++i) this->maximum = fn::Maximum::apply(this->maximum, x[i]);
      float const shift = finite(this->maximum);
      float e[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) e[i] = exp(x[i] - shift);
      float const run = ((e[0] + e[1]) + (e[2] + e[3])) + ((e[4] + e[5]) + (e[6] + e[7]));
      this->sum = fmaf(this->sum, exp(old - shift), run);
    }
    CF_DEVICE State finish(float /*count*/, int /*base*/ = 0) const { return *this; }
  };
  CF_DEVICE static State merge(State a, State b, float /*counts*/, float) {
    a.add(b.maximum, b.sum);
    return a;
  }
  struct Merger {
    State all{-INFINITY, 0.f};
    CF_DEVICE void add(State s, float /*count*/, bool /*first*/) { all.add(s.maximum, s.sum); }
    CF_DEVICE State finish(float /*1 / count*/) const { return all; }
  };

 private:
  // As a shift, -inf would make inf - inf of elements that weigh nothing.  Shifting before the scaling by
  // log2(e) keeps the maximum exact and rows of the lowest float32, as masks have them, finite.
  CF_DEVICE static float finite(float maximum) { return fmaxf(maximum, -FLT_MAX); }
  CF_DEVICE static float exp(float x) { return fn::Exp::apply(x); }
};

}  // namespace comfuse
