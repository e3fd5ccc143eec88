// Eight neighbouring elements of a tensor, as 32-bit words of memory and as float32.
#pragma once

#include "comfuse/numeric.hpp"

namespace comfuse {

template <class T>
struct Block {
  static constexpr int kWords = 2 * sizeof(T);
  uint32_t words[kWords];
};

namespace detail {

template <class T>
struct Packing;

// ---- 16-bit formats: two elements a word, `first` in the low half
template <>
struct Packing<bf16> {
  __device__ __forceinline__ static void pack(float const* x, uint32_t* words) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(words[i]) : "f"(x[2 * i + 1]), "f"(x[2 * i]));
  }
  __device__ __forceinline__ static void unpack(uint32_t const* words, float* x) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = __uint_as_float(words[i] << 16);
      x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
};
__device__ __forceinline__ void unpack_halves(uint32_t bits, float* x) {
  x[0] = __half2float(__ushort_as_half(static_cast<unsigned short>(bits & 0xffffu)));
  x[1] = __half2float(__ushort_as_half(static_cast<unsigned short>(bits >> 16)));
}
template <>
struct Packing<fp16> {
  __device__ __forceinline__ static void pack(float const* x, uint32_t* words) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(words[i]) : "f"(x[2 * i + 1]), "f"(x[2 * i]));
  }
  __device__ __forceinline__ static void unpack(uint32_t const* words, float* x) {
#pragma unroll
    for (int i = 0; i < 4; ++i) unpack_halves(words[i], x + 2 * i);
  }
};

// ---- one byte: four elements a word
template <>
struct Packing<e4m3> {
  __device__ __forceinline__ static void pack(float const* x, uint32_t* words) {
#pragma unroll
    for (int i = 0; i < 2; ++i, x += 4) words[i] = e4m3x2(x[0], x[1]) | e4m3x2(x[2], x[3]) << 16;
  }
  __device__ __forceinline__ static void unpack(uint32_t const* words, float* x) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t halves;
      asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(uint16_t(words[i / 2] >> i % 2 * 16)));
      unpack_halves(halves, x + 2 * i);
    }
  }
};
template <>
struct Packing<e5m2> {
  __device__ __forceinline__ static void pack(float const* x, uint32_t* words) {
#pragma unroll
    for (int i = 0; i < 2; ++i, x += 4) words[i] = e5m2x2(x[0], x[1]) | e5m2x2(x[2], x[3]) << 16;
  }
  __device__ __forceinline__ static void unpack(uint32_t const* words, float* x) {
    // The upper byte of an fp16 number.
#pragma unroll
    for (int i = 0; i < 4; ++i)
      unpack_halves(__byte_perm(words[i / 2], 0, i % 2 == 0 ? 0x1404 : 0x3424), x + 2 * i);
  }
};
// The float32 with the bits 0x4b0000uu is 2^23 + uu: two instructions an element, where a conversion would
// take a slot of the slow unit.
template <int kBias>
__device__ __forceinline__ void unpack_bytes(uint32_t word, float* x) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    x[i] = __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440 + i)) - (8388608.f + kBias);
}
template <>
struct Packing<int8> {
  __device__ __forceinline__ static void pack(float const* x, uint32_t* words) {
#pragma unroll
    for (int i = 0; i < 2; ++i, x += 4) {
      uint32_t high;
      asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;"
          : "=r"(high)
          : "r"(truncate32(x[3])), "r"(truncate32(x[2])));
      asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;"
          : "=r"(words[i])
          : "r"(truncate32(x[1])), "r"(truncate32(x[0])), "r"(high));
    }
  }
  __device__ __forceinline__ static void unpack(uint32_t const* words, float* x) {
#pragma unroll
    for (int i = 0; i < 2; ++i) unpack_bytes<128>(words[i] ^ 0x80808080u, x + 4 * i);
  }
};
template <>
struct Packing<uint8> {
  __device__ __forceinline__ static void pack(float const* x, uint32_t* words) {
#pragma unroll
    for (int i = 0; i < 2; ++i, x += 4) {
      uint32_t high;
      asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, 0;"
          : "=r"(high)
          : "r"(truncate32(x[3])), "r"(truncate32(x[2])));
      asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;"
          : "=r"(words[i])
          : "r"(truncate32(x[1])), "r"(truncate32(x[0])), "r"(high));
    }
  }
  __device__ __forceinline__ static void unpack(uint32_t const* words, float* x) {
#pragma unroll
    for (int i = 0; i < 2; ++i) unpack_bytes<0>(words[i], x + 4 * i);
  }
};
template <>
struct Packing<boolean> {
  __device__ __forceinline__ static void pack(float const* x, uint32_t* words) {
#pragma unroll
    for (int i = 0; i < 2; ++i, x += 4)
      words[i] = uint32_t(x[0] != 0.f) | uint32_t(x[1] != 0.f) << 8 | uint32_t(x[2] != 0.f) << 16 |
                 uint32_t(x[3] != 0.f) << 24;
  }
  __device__ __forceinline__ static void unpack(uint32_t const* words, float* x) {
    Packing<uint8>::unpack(words, x);
  }
};

// ---- a word or two for each element
template <>
struct Packing<fp32> {
  __device__ __forceinline__ static void pack(float const* x, uint32_t* words) {
#pragma unroll
    for (int i = 0; i < 8; ++i) words[i] = __float_as_uint(x[i]);
  }
  __device__ __forceinline__ static void unpack(uint32_t const* words, float* x) {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = __uint_as_float(words[i]);
  }
};
template <>
struct Packing<int32> {
  __device__ __forceinline__ static void pack(float const* x, uint32_t* words) {
#pragma unroll
    for (int i = 0; i < 8; ++i) words[i] = uint32_t(truncate32(x[i]));
  }
  __device__ __forceinline__ static void unpack(uint32_t const* words, float* x) {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = to_float(int32(words[i]));
  }
};
template <>
struct Packing<int64> {
  __device__ __forceinline__ static void pack(float const* x, uint32_t* words) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      int64 const y = truncate64(x[i]);
      words[2 * i] = uint32_t(y), words[2 * i + 1] = uint32_t(uint64_t(y) >> 32);
    }
  }
  __device__ __forceinline__ static void unpack(uint32_t const* words, float* x) {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = to_float(int64(uint64_t(words[2 * i + 1]) << 32 | words[2 * i]));
  }
};

}  // namespace detail

template <class T>
__device__ __forceinline__ Block<T> pack(float const (&x)[8]) {
  Block<T> block;
  detail::Packing<T>::pack(x, block.words);
  return block;
}
template <class T>
__device__ __forceinline__ void unpack(Block<T> const& block, float (&x)[8]) {
  detail::Packing<T>::unpack(block.words, x);
}

// From memory that is aligned to 16 bytes, or to the whole block where that is 8.
template <class T>
__device__ __forceinline__ Block<T> load_block(T const* p) {
  Block<T> block;
  if constexpr (sizeof(T) == 1) {
    uint2 const v = *reinterpret_cast<uint2 const*>(p);
    block.words[0] = v.x, block.words[1] = v.y;
  } else {
#pragma unroll
    for (int i = 0; i < Block<T>::kWords; i += 4) {
      uint4 const v = reinterpret_cast<uint4 const*>(p)[i / 4];
      block.words[i] = v.x, block.words[i + 1] = v.y, block.words[i + 2] = v.z, block.words[i + 3] = v.w;
    }
  }
  return block;
}

}  // namespace comfuse
