// The 16-bit formats.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

namespace emulator {

inline uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}
inline float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

inline float float_of_bf16(uint16_t bits) { return float_of(uint32_t(bits) << 16); }
inline uint16_t bf16_of(float x) {
  uint32_t const bits = bits_of(x);
  if (x != x) return 0x7fff;
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float float_of_fp16(uint16_t bits) {
  int const exponent = bits >> 10 & 31, mantissa = bits & 1023;
  float x = exponent == 31
                ? (mantissa ? NAN : INFINITY)
                : ldexpf(float(exponent ? mantissa + 1024 : mantissa), (exponent ? exponent : 1) - 25);
  return bits & 0x8000 ? -x : x;
}
inline uint16_t fp16_of(float x) {
  uint16_t const sign = uint16_t(bits_of(x) >> 16 & 0x8000);
  if (x != x) return 0x7fff;
  x = fabsf(x);
  if (x == 0.f) return sign;
  if (x >= 65520.f) return sign | 0x7c00;
  int exponent;
  frexpf(x, &exponent);
  if (exponent < -13) exponent = -13;  // subnormal numbers have the smallest normal one's unit
  // To even, as nearbyint does; a carry goes on into the exponent.
  int const units = int(nearbyintf(ldexpf(x, 11 - exponent)));
  return uint16_t(sign | (((exponent + 13) << 10) + units));
}

}  // namespace emulator
