// Runs the quads' trade of accumulators on a simulated warp; the differences are on stderr.
#include "comfuse/sm90/transpose.hpp"

#include <array>
#include <cstdio>

using Lanes = std::array<float, 32>;

struct SimulatedWarp {
  using Value = Lanes;
  static Lanes select(int bit, Lanes const& a, Lanes const& b) {
    Lanes x;
    for (int lane = 0; lane < 32; ++lane) x[lane] = lane >> bit & 1 ? a[lane] : b[lane];
    return x;
  }
  static Lanes shuffle_xor(Lanes const& x, int mask) {
    Lanes y;
    for (int lane = 0; lane < 32; ++lane) y[lane] = x[lane ^ mask];
    return y;
  }
};

int main() {
  auto const value = [](int row, int column) { return float(100 * row + column); };
  Lanes v[16];
  for (int lane = 0; lane < 32; ++lane)
    for (int n = 0; n < 16; ++n)  // as wgmma deals them
      v[n][lane] = value(lane / 4 + 8 * (n / 2 % 2), 8 * (n / 4) + 2 * (lane % 4) + n % 2);
  comfuse::sm90::transpose_fragment<SimulatedWarp>(v);
  int failures = 0;
  for (int lane = 0; lane < 32; ++lane)
    for (int n = 0; n < 16; ++n) {  // as fragment.hpp reads them
      float const wanted = value(lane / 4 + 8 * (n / 2 % 2), 8 * (lane % 4) + 2 * (n / 4) + n % 2);
      if (v[n][lane] == wanted) continue;
      std::fprintf(stderr, "lane %d, value %d: %g, not %g\n", lane, n, v[n][lane], wanted);
      ++failures;
    }
  return failures == 0 ? 0 : 1;
}
