// Stands in for comfuse/blocks.hpp on the host.
#pragma once

#include "comfuse/sm90/instructions.hpp"

namespace comfuse {

template <class T>
struct Block {
  T elements[8];
};
template <class T>
Block<T> pack(float const (&x)[8]) {
  Block<T> block;
  for (int i = 0; i < 8; ++i) block.elements[i] = from_float<T>(x[i]);
  return block;
}
template <class T>
void unpack(Block<T> const& block, float (&x)[8]) {
  for (int i = 0; i < 8; ++i) x[i] = to_float(block.elements[i]);
}
template <class T>
Block<T> load_block(T const* p) {
  Block<T> block;
  memcpy(block.elements, p, sizeof block);
  return block;
}

}  // namespace comfuse
