// Runs the quads' trades on a simulated warp, of accumulators and of packed pairs; the differences are on
// stderr.
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

// A row's 32 columns: four words a lane, each a pair, named by its first column.
int join() {
  Lanes w[4];
  for (int lane = 0; lane < 32; ++lane)
    for (int j = 0; j < 4; ++j) w[j][lane] = 8 * j + 2 * (lane % 4);  // as wgmma deals them
  comfuse::sm90::join_pairs<SimulatedWarp>(w);
  int failures = 0;
  for (int lane = 0; lane < 32; ++lane)
    for (int j = 0; j < 4; ++j) {  // as store.hpp writes them
      float const wanted = 16 * (j / 2) + comfuse::sm90::first_column_of_joined(lane % 4) + j % 2 * 2;
      if (w[j][lane] == wanted) continue;
      std::fprintf(stderr, "lane %d, word %d: columns from %g, not %g\n", lane, j, w[j][lane], wanted);
      ++failures;
    }
  return failures;
}

int main() {
  auto const value = [](int row, int column) { return float(100 * row + column); };
  Lanes v[16];
  for (int lane = 0; lane < 32; ++lane)
    for (int n = 0; n < 16; ++n)  // as wgmma deals them
      v[n][lane] = value(lane / 4 + 8 * (n / 2 % 2), 8 * (n / 4) + 2 * (lane % 4) + n % 2);
  comfuse::sm90::transpose_fragment<SimulatedWarp>(v);
  int failures = join();
  for (int lane = 0; lane < 32; ++lane)
    for (int n = 0; n < 16; ++n) {  // as fragment.hpp reads them
      float const wanted = value(lane / 4 + 8 * (n / 2 % 2), 8 * (lane % 4) + 2 * (n / 4) + n % 2);
      if (v[n][lane] == wanted) continue;
      std::fprintf(stderr, "lane %d, value %d: %g, not %g\n", lane, n, v[n][lane], wanted);
      ++failures;
    }
  return failures == 0 ? 0 : 1;
}
