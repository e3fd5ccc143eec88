// Where 16 bytes of a piece of a tile operand lie, against TMA's 64-byte swizzle; the differences are on
// stderr.
#include <cstdio>
#include <set>

#include "comfuse/sm90/slot_layout.hpp"

int main() {
  int failures = 0;
  std::set<int> offsets;
  for (int row = 0; row < 64; ++row)
    for (int chunk = 0; chunk < 4; ++chunk) {
      int const plain = 64 * row + 16 * chunk, got = comfuse::sm90::swizzled_offset(row, chunk);
      int const wanted = plain ^ ((plain >> 7 & 3) << 4);  // bits 7 and 8 on bits 4 and 5
      offsets.insert(got);
      if (got == wanted) continue;
      std::fprintf(stderr, "row %d, chunk %d: %d, not %d\n", row, chunk, got, wanted);
      ++failures;
    }
  if (offsets.size() != 256 || *offsets.rbegin() >= 64 * 64)
    std::fprintf(stderr, "not all of a slot\n"), ++failures;
  // The eight rows of a matrix, in the 32 banks of four bytes.
  for (int first = 0; first < 64; first += 8)
    for (int chunk = 0; chunk < 4; ++chunk) {
      std::set<int> banks;
      for (int row = first; row < first + 8; ++row)
        for (int word = 0; word < 4; ++word)
          banks.insert((comfuse::sm90::swizzled_offset(row, chunk) / 4 + word) % 32);
      if (banks.size() == 32) continue;
      std::fprintf(stderr, "rows from %d, chunk %d: %zu banks\n", first, chunk, banks.size());
      ++failures;
    }
  return failures == 0 ? 0 : 1;
}
