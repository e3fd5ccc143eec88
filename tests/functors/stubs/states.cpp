// Reduces two rows as the middle of a chain does: the four threads of a quad, block by block.
#include <thread>

#include "barrier_of_four.hpp"
#include "comfuse/sm90/chain_states.hpp"

namespace cf = comfuse;
using namespace cf::sm90;

// What the two phases read: the product, and the shifts as the second phase's Column.
struct Source {
  static constexpr int i = 0;
  float const (*columns)[2];
  Fragment acc[1];
  template <class>
  static constexpr bool binds = false;
  Source const& source() const { return *this; }
};

using X = cf::Acc;
using Peak = cf::Column<0, cf::Stat<0, cf::value>>;
using E = cf::Exp<cf::Sub<X, Peak>>;
using Values = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>,
                         cf::Effects<cf::RowReduce<0, cf::Max, X>, cf::RowReduce<1, cf::Welford, X>>>;
using Exponentials = cf::Phase<cf::Tiles<>, cf::Columns<Peak>, cf::Lets<>,
                               cf::Effects<cf::RowReduce<2, cf::Sum, E>, cf::Pass<E>>>;

template <int H>
void run_lane(int q, float const* x, float const* weights, float* results) {
  lane = q;
  MiddleStates<cf::Online<Values, Exponentials>, H> states;
  float accumulator[4] = {};  // of two rows, as wgmma deals them: twice one column of each
  for (int block = 0; block < H; block += 64) {
    auto const sweep = [&](auto effects, auto const& fragment_done) {
      for (int chunk = block; chunk < block + 64 && chunk < H; chunk += 32) {
        Source source{states.shifts(), {}};
        for (int half = 0; half < 2; ++half)
          for (int i = 0; i < 8; ++i) {
            int const column = chunk + i / 2 * 8 + 2 * q + i % 2;
            source.acc[0].at(half, i) = column < H ? x[half * H + column] : NAN;
          }
        states.add(source, chunk == 0, H - chunk, effects);
        fragment_done(source, chunk);
      }
    };
    sweep(Values::Effects{}, [](auto const&, int) {});
    states.grow();
    if (block > 0) states.rescale(accumulator);
    sweep(Exponentials::Effects{}, [&](Source const& source, int chunk) {
      Fragment const e = evaluate<E>(source);
      for (int half = 0; half < 2; ++half)
        for (int i = 0; i < 8; ++i) {
          int const column = chunk + i / 2 * 8 + 2 * q + i % 2;
          if (column < H) accumulator[2 * half + i % 2] += e.at(half, i) * weights[column];
        }
    });
  }
  // Thread q owns row q % 2.
  auto const finished = states.finish();
  float* of_lane = results + 6 * q;
  of_lane[0] = state_of<0>(finished).template get<cf::value>(1.f / H);
  of_lane[1] = state_of<1>(finished).template get<cf::mean>(1.f / H);
  of_lane[2] = state_of<1>(finished).template get<cf::variance>(1.f / H);
  of_lane[3] = state_of<2>(finished).template get<cf::value>(1.f / H);
  of_lane[4] = accumulator[0] + accumulator[1];
  of_lane[5] = accumulator[2] + accumulator[3];
}

// x: two rows of H.  Results, lane by lane: maximum, mean, variance, sum of exponentials of the row that the
// lane owns; its part of both rows' sums of exponential times weight.
#define MIDDLE(H)                                                                            \
  extern "C" void middle_##H(float const* x, float const* weights, float* results) {         \
    std::thread lanes[4];                                                                    \
    for (int q = 0; q < 4; ++q) lanes[q] = std::thread(run_lane<H>, q, x, weights, results); \
    for (auto& one : lanes) one.join();                                                      \
  }
MIDDLE(8)
MIDDLE(40)
MIDDLE(64)
MIDDLE(200)
MIDDLE(512)
