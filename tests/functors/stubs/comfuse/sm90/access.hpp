// Stands in for comfuse/sm90/access.hpp on the host: accesses that are watched.
#pragma once

#include "comfuse/blocks.hpp"

namespace comfuse::sm90 {

// One byte for each of a buffer's: may it be touched?
struct Watched {
  char const *data = nullptr, *allowed = nullptr;
  long bytes = 0;
};
inline Watched operand_bytes, output_bytes;
inline long faults = 0, block_accesses = 0, element_accesses = 0;

inline void touch(Watched const& watched, void const* p, long bytes, long alignment) {
  long const first = static_cast<char const*>(p) - watched.data;
  bool fine = first >= 0 && first + bytes <= watched.bytes && reinterpret_cast<uintptr_t>(p) % alignment == 0;
  for (long i = 0; fine && i < bytes; ++i) fine = watched.allowed[first + i];
  faults += !fine;
}

template <class T>
void load_block_if(bool condition, T const* p, Block<T>& block) {
  if (!condition) return;
  touch(operand_bytes, p, sizeof block, sizeof(T) == 1 ? 8 : 16);
  ++block_accesses;
  memcpy(block.elements, p, sizeof block);
}
template <class T>
void store_block_if(bool condition, T* p, Block<T> const& block) {
  if (!condition) return;
  touch(output_bytes, p, sizeof block, sizeof(T) == 1 ? 8 : 16);
  ++block_accesses;
  memcpy(p, block.elements, sizeof block);
}
template <class T>
void load_element_if(bool condition, T const* p, Block<T>& block, int i) {
  if (!condition) return;
  touch(operand_bytes, p, sizeof(T), sizeof(T));
  ++element_accesses;
  block.elements[i] = *p;
}
template <class T>
void store_element_if(bool condition, T* p, Block<T> const& block, int i) {
  if (!condition) return;
  touch(output_bytes, p, sizeof(T), sizeof(T));
  ++element_accesses;
  *p = block.elements[i];
}

}  // namespace comfuse::sm90
