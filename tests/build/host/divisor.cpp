// Divides by multiplication, at the borders of every quotient's neighbourhood; the first mistake is on
// stderr.
#include "comfuse/sm90/divisor.hpp"

#include <cstdio>

int main() {
  constexpr uint64_t kEnd = uint64_t(1) << 31;
  for (uint64_t value = 1; value < kEnd; value += value < 3000 ? 1 : value / 1009) {
    auto const divisor = comfuse::sm90::Divisor::of(uint32_t(value));
    uint64_t const last = (kEnd - 1) / value;
    for (uint64_t i = 0; i <= 1000; ++i)
      for (int64_t near = -1; near <= 1; ++near) {
        uint64_t const n = last * i / 1000 * value + uint64_t(near);
        if (n >= kEnd || divisor.divide(uint32_t(n)) == n / value) continue;
        std::fprintf(stderr, "%llu / %llu: %u\n", (unsigned long long)n, (unsigned long long)value,
                     divisor.divide(uint32_t(n)));
        return 1;
      }
    if (divisor.divide(kEnd - 1) != (kEnd - 1) / value) return 1;
  }
  return 0;
}
