// wgmma and ldmatrix, as the PTX ISA lays out their fragments.  Operands have the 128-byte swizzle.
#pragma once

#include <tuple>

#include "emulator/formats.hpp"
#include "emulator/memory.hpp"

namespace emulator {

inline float element(uint32_t address, bool half) {
  uint16_t bits;
  memcpy(&bits, shared_byte(swizzled(address, 128)), 2);
  return half ? float_of_fp16(bits) : float_of_bf16(bits);
}

// Rows of 16 k's, in lines of 128 bytes, the eighth line after a line `stride` further, all of that swizzled.
// K-major, a line has a row's k's; MN-major, a k's elements of 64 rows, and the next 64 lie `leading`
// further.
inline std::vector<float> rows_of(uint64_t descriptor, int first, int count, bool half, bool mn_major) {
  auto const bytes = [&](int bit) { return uint32_t(descriptor >> bit & 0x3fff) << 4; };
  uint32_t const start = bytes(0), leading = bytes(16), stride = bytes(32);
  if (descriptor >> 62 != 1) fail("a descriptor without the 128-byte swizzle");
  if ((descriptor >> 49 & 7) != 0 || start % 1024 >= (mn_major ? 1u : 128u))
    fail("a descriptor that starts within a swizzle atom");
  std::vector<float> values(16 * count);
  for (int r = 0; r < count; ++r)
    for (int k = 0; k < 16; ++k) {
      uint32_t const row = first + r, line = mn_major ? k : row, within = mn_major ? row % 64 : k;
      values[16 * r + k] = element(
          start + (mn_major ? row / 64 * leading : 0) + line / 8 * stride + line % 8 * 128 + 2 * within,
          half);
    }
  return values;
}

// The warp's 16 rows of A, from its lanes' registers.
inline std::vector<float> rows_in_registers(Thread const* lanes, int group, int index, bool half) {
  std::vector<float> values(16 * 16);
  for (int lane = 0; lane < 32; ++lane)
    for (int word = 0; word < 4; ++word)
      for (int e = 0; e < 2; ++e) {
        uint16_t const bits = uint16_t(*lanes[lane].groups[group].wgmmas[index].a[word] >> 16 * e);
        int const row = lane / 4 + word % 2 * 8, k = lane % 4 * 2 + word / 2 * 8 + e;
        values[16 * row + k] = half ? float_of_fp16(bits) : float_of_bf16(bits);
      }
  return values;
}

inline void run_wgmma(Thread const* lanes, int group, int index) {
  Wgmma const& w = lanes[0].groups[group].wgmmas[index];
  for (int i = 0; i < 32; ++i) {
    Wgmma const& other = lanes[i].groups[group].wgmmas[index];
    if (other.n != w.n || other.descriptor_b != w.descriptor_b || other.accumulate != w.accumulate ||
        other.descriptor_a != w.descriptor_a)
      fail("the lanes of a warp give wgmma different descriptors");
  }
  int const first = int(lanes[0].id / 32 % 4) * 16;
  auto const a = w.a_in_registers ? rows_in_registers(lanes, group, index, w.half)
                                  : rows_of(w.descriptor_a, first, 16, w.half, w.mn_major_a);
  auto const b = rows_of(w.descriptor_b, 0, w.n, w.half, w.mn_major_b);
  for (int i = 0; i < 32; ++i) {
    float* const d = lanes[i].groups[group].wgmmas[index].d;
    for (int n = 0; n < w.n / 2; ++n) {
      int const row = i / 4 + n / 2 % 2 * 8, column = n / 4 * 8 + i % 4 * 2 + n % 2;
      double sum = w.accumulate ? d[n] : 0.0;
      for (int k = 0; k < 16; ++k) sum += double(a[16 * row + k]) * b[16 * column + k];
      d[n] = float(sum);
    }
  }
}

inline void run_group(Thread* lanes, int group) {
  if (lanes[0].groups[group].done) return;
  for (size_t i = 0; i < lanes[0].groups[group].wgmmas.size(); ++i) run_wgmma(lanes, group, int(i));
  for (int i = 0; i < 32; ++i) lanes[i].groups[group].done = true;
}

inline void wgmma_fence() {
  meet_warp("wgmma.fence");
  self().fenced = true;
}
// A group may run as soon as it is committed, or not before it is waited for.
inline void wgmma_commit() {
  if (self().issued.empty()) fail("an empty group of wgmmas");
  if (self().issued.front().a_in_registers) end_reads();
  self().groups.push_back({std::move(self().issued)});
  self().issued.clear();
  ++self().committed;
  wake(self().cta->multiplying[self().id / kWarpgroupThreads]);
  meet_warp("wgmma.commit_group", [] {
    if (machine.draw(2) == 0)
      for (size_t g = 0; g < lane(0).groups.size(); ++g) run_group(&lane(0), int(g));  // in order
  });
}
// A warpgroup's wgmmas end together: where one of its warps has waited, what the others read is free too.
template <int Left>
void wgmma_wait() {
  if (!self().issued.empty()) fail("waits for wgmmas that were not committed");
  unsigned const group = self().id / kWarpgroupThreads;
  Thread* const first = &self().cta->threads[kWarpgroupThreads * group];
  long const wanted = self().committed - Left;
  for (Thread* lanes = first; lanes < first + kWarpgroupThreads; ++lanes)
    while (lanes->committed < wanted) {
      self().cta->multiplying[group].push_back(&self());
      block("wgmmas of the warpgroup's other warps");
    }
  meet_warp("wgmma.wait_group", [=] {
    for (Thread* lanes = first; lanes < first + kWarpgroupThreads; lanes += 32) {
      long const done = lanes->committed - long(lanes->groups.size());
      for (long g = done; g < wanted; ++g) run_group(lanes, int(g - done));
    }
    for (int i = 0; i < 32; ++i) {
      auto& groups = lane(i).groups;
      if (int(groups.size()) <= Left) continue;
      groups.erase(groups.begin(), groups.end() - Left);
      lane(i).fenced = false;
    }
  });
}

inline void issue(Wgmma const& w, float const* last) {
  if (!self().fenced) fail("a wgmma without a fence since the last wait");
  if (last - w.d != w.n / 2 - 1) fail("accumulators that are not one array");
  self().issued.push_back(w);
}
template <int N, bool Half, bool MNMajorA, bool MNMajorB>
struct WgmmaOfShared {
  template <class... X>
  static void fma(uint64_t a, uint64_t b, X&&... x) {
    auto const d = std::forward_as_tuple(x...);
    constexpr int kCount = sizeof...(X) - 1;
    static_assert(kCount == N / 2);
    issue({N, Half, false, bool(std::get<kCount>(d)), MNMajorA, MNMajorB, {}, a, b, &std::get<0>(d)},
          &std::get<kCount - 1>(d));
  }
};
template <int N, bool Half, bool MNMajorB>
struct WgmmaOfRegisters {
  template <class... X>
  static void fma(uint32_t const& a0, uint32_t const& a1, uint32_t const& a2, uint32_t const& a3, uint64_t b,
                  X&&... x) {
    auto const d = std::forward_as_tuple(x...);
    constexpr int kCount = sizeof...(X) - 1;
    static_assert(kCount == N / 2);
    issue({N,
           Half,
           true,
           bool(std::get<kCount>(d)),
           false,
           MNMajorB,
           {&a0, &a1, &a2, &a3},
           0,
           b,
           &std::get<0>(d)},
          &std::get<kCount - 1>(d));
  }
};

// Each lane gives the address of a row of eight elements, and gets two of row lane / 4 of each matrix.
inline void ldmatrix(uint32_t& r0, uint32_t& r1, uint32_t& r2, uint32_t& r3, uint32_t address) {
  if (address % 16 != 0) fail("ldmatrix from an address that is not aligned");
  self().in = address;
  meet_warp("ldmatrix");
  uint32_t* const to[4] = {&r0, &r1, &r2, &r3};
  int const own = int(self().id % 32);
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint32_t const row = uint32_t(lane(8 * matrix + own / 4).in);
    note_read(row);
    memcpy(to[matrix], shared_byte(row) + own % 4 * 4, 4);
  }
  meet_warp("ldmatrix");
}

}  // namespace emulator
