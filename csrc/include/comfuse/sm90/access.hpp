// Predicated accesses to global memory, a run of eight elements or one of its elements at a time.
#pragma once

#include "comfuse/blocks.hpp"
#include "comfuse/sm90/instructions.hpp"

namespace comfuse::sm90 {

// Predicated, not branched around: a branch would end the scheduler's block at every access.  The operands
// of a launch do not change while it runs, so that loads may move; stores are volatile.
#define CF_PREDICATED(CONDITION, INSTRUCTION) \
  "{ .reg .pred q; setp.ne.s32 q, " CONDITION ", 0; @q " INSTRUCTION "; }"

template <class T>
CF_DEVICE void load_block_if(bool condition, T const* p, Block<T>& block) {
  uint32_t* w = block.words;
  if constexpr (sizeof(T) == 1) {
    asm(CF_PREDICATED("%3", "ld.global.v2.u32 {%0, %1}, [%2]")
        : "+r"(w[0]), "+r"(w[1])
        : "l"(p), "r"(int(condition)));
  } else {
#pragma unroll
    for (int i = 0; i < Block<T>::kWords; i += 4)
      asm(CF_PREDICATED("%5", "ld.global.v4.u32 {%0, %1, %2, %3}, [%4]")
          : "+r"(w[i]), "+r"(w[i + 1]), "+r"(w[i + 2]), "+r"(w[i + 3])
          : "l"(reinterpret_cast<uint4 const*>(p) + i / 4), "r"(int(condition)));
  }
}
CF_DEVICE void store_words_if(bool condition, void* p, uint32_t first, uint32_t second) {
  asm volatile(CF_PREDICATED("%3", "st.global.v2.u32 [%0], {%1, %2}")::"l"(p), "r"(first), "r"(second),
               "r"(int(condition)));
}
template <class T>
CF_DEVICE void store_block_if(bool condition, T* p, Block<T> const& block) {
  uint32_t const* w = block.words;
  if constexpr (sizeof(T) == 1) {
    store_words_if(condition, p, w[0], w[1]);
  } else {
#pragma unroll
    for (int i = 0; i < Block<T>::kWords; i += 4)
      asm volatile(CF_PREDICATED("%5", "st.global.v4.u32 [%0], {%1, %2, %3, %4}")::"l"(
                       reinterpret_cast<uint4*>(p) + i / 4),
                   "r"(w[i]), "r"(w[i + 1]), "r"(w[i + 2]), "r"(w[i + 3]), "r"(int(condition)));
  }
}

// The i-th of a block's elements.
template <class T>
CF_DEVICE void load_element_if(bool condition, T const* p, Block<T>& block, int i) {
  constexpr int kBits = 8 * sizeof(T);
  uint32_t* w = block.words;
  if constexpr (sizeof(T) == 8) {
    asm(CF_PREDICATED("%3", "ld.global.v2.u32 {%0, %1}, [%2]")
        : "+r"(w[2 * i]), "+r"(w[2 * i + 1])
        : "l"(p), "r"(int(condition)));
  } else if constexpr (sizeof(T) == 4) {
    asm(CF_PREDICATED("%2", "ld.global.u32 %0, [%1]") : "+r"(w[i]) : "l"(p), "r"(int(condition)));
  } else {
    uint32_t bits = 0;
    if constexpr (sizeof(T) == 2)
      asm(CF_PREDICATED("%2", "ld.global.u16 %0, [%1]") : "+r"(bits) : "l"(p), "r"(int(condition)));
    else
      asm(CF_PREDICATED("%2", "ld.global.u8 %0, [%1]") : "+r"(bits) : "l"(p), "r"(int(condition)));
    w[i * kBits / 32] |= bits << i * kBits % 32;
  }
}
template <class T>
CF_DEVICE void store_element_if(bool condition, T* p, Block<T> const& block, int i) {
  constexpr int kBits = 8 * sizeof(T);
  uint32_t const* w = block.words;
  if constexpr (sizeof(T) == 8) {
    asm volatile(CF_PREDICATED("%3", "st.global.v2.u32 [%0], {%1, %2}")::"l"(p), "r"(w[2 * i]),
                 "r"(w[2 * i + 1]), "r"(int(condition)));
  } else {
    uint32_t const bits = w[i * kBits / 32] >> i * kBits % 32;
    if constexpr (sizeof(T) == 4)
      asm volatile(CF_PREDICATED("%2", "st.global.u32 [%0], %1")::"l"(p), "r"(bits), "r"(int(condition)));
    else if constexpr (sizeof(T) == 2)
      asm volatile(CF_PREDICATED("%2", "st.global.u16 [%0], %1")::"l"(p), "r"(bits), "r"(int(condition)));
    else
      asm volatile(CF_PREDICATED("%2", "st.global.u8 [%0], %1")::"l"(p), "r"(bits), "r"(int(condition)));
  }
}
#undef CF_PREDICATED

}  // namespace comfuse::sm90
