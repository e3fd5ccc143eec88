// Choice, comparison and logic: true is anything but 0, results are 1 or 0.
#ifndef COMFUSE_FUNCTORS_CHOICE_HPP_
#define COMFUSE_FUNCTORS_CHOICE_HPP_

#include "comfuse/functors/primitives.hpp"

namespace comfuse {
namespace fn {

struct Where {
  static CF_HD float apply(float condition, float a, float b) { return condition != 0.0f ? a : b; }
};
struct Eq {
  static CF_HD float apply(float a, float b) { return a == b ? 1.0f : 0.0f; }
};
struct Ne {
  static CF_HD float apply(float a, float b) { return a != b ? 1.0f : 0.0f; }
};
struct Lt {
  static CF_HD float apply(float a, float b) { return a < b ? 1.0f : 0.0f; }
};
struct Le {
  static CF_HD float apply(float a, float b) { return a <= b ? 1.0f : 0.0f; }
};
struct Gt {
  static CF_HD float apply(float a, float b) { return a > b ? 1.0f : 0.0f; }
};
struct Ge {
  static CF_HD float apply(float a, float b) { return a >= b ? 1.0f : 0.0f; }
};
struct LogicalAnd {
  static CF_HD float apply(float a, float b) { return a != 0.0f && b != 0.0f ? 1.0f : 0.0f; }
};
struct LogicalOr {
  static CF_HD float apply(float a, float b) { return a != 0.0f || b != 0.0f ? 1.0f : 0.0f; }
};
struct LogicalNot {
  static CF_HD float apply(float x) { return x == 0.0f ? 1.0f : 0.0f; }
};
struct LogicalXor {
  static CF_HD float apply(float a, float b) { return (a != 0.0f) != (b != 0.0f) ? 1.0f : 0.0f; }
};
struct Isnan {
  static CF_HD float apply(float x) { return x != x ? 1.0f : 0.0f; }
};
struct Isinf {
  static CF_HD float apply(float x) { return ::fabsf(x) == INFINITY ? 1.0f : 0.0f; }
};
struct Isfinite {
  static CF_HD float apply(float x) { return ::fabsf(x) < INFINITY ? 1.0f : 0.0f; }
};

}  // namespace fn
}  // namespace comfuse

#endif
