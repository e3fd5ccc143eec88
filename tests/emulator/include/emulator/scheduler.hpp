// Runs the CTAs of a launch.
//
// Which thread goes on, and when what is asynchronous happens, is drawn at random, with whole warps slow for
// a while: what a protocol does not order comes in any order.
#pragma once

#include <stdlib.h>
#include <sys/mman.h>

#include "emulator/machine.hpp"

namespace emulator {

inline void start_thread() {
  machine.body();
  self().done = true;
  for (;;) swapcontext(&self().context, &machine.scheduler);
}

// Stacks are used again: what they held is not read before it is written.
inline void* stack_of(size_t number, size_t bytes) {
  static std::vector<void*> stacks;
  while (stacks.size() <= number) {
    void* const stack =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) throw std::runtime_error("no memory for a thread's stack");
    stacks.push_back(stack);
  }
  return stacks[number];
}
inline void prepare_threads(Cta& cta, int count, size_t first_stack) {
  constexpr size_t kStack = 256 << 10;
  cta.threads = std::vector<Thread>(count);
  cta.warps = std::vector<Meeting>(count / 32);
  for (int i = 0; i < count; ++i) {
    Thread& t = cta.threads[i];
    t.id = i;
    t.cta = &cta;
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = stack_of(first_stack + i, kStack);
    t.context.uc_stack.ss_size = kStack;
    t.context.uc_link = nullptr;
    makecontext(&t.context, start_thread, 0);
  }
}

// How the machine behaves for a while: which warps and CTAs are slow, and how long transfers, sleep and a
// CTA's start take.
struct Mood {
  uint64_t slow_warps = 0, slow_ctas = 0;
  unsigned transfer_steps = 1, sleep_steps = 1, start_steps = 1, left = 0;

  void pass() {
    if (left-- > 0) return;
    left = 200 + machine.draw(8000);
    slow_warps = machine.draw(3) == 0 ? 0 : machine.random() & machine.random();
    slow_ctas = machine.draw(2) == 0 ? 0 : machine.random();
    transfer_steps = 1u << machine.draw(12), sleep_steps = 1u << machine.draw(14);
    start_steps = 1u << machine.draw(14);
  }
  bool is_slow(Thread const& t) const {
    return (slow_warps >> (7 * t.cta->index + t.id / 32) % 64 | slow_ctas >> t.cta->index % 64) & 1;
  }
};

// Any one of them.
template <class T>
T take(std::vector<T>& from, size_t i) {
  T const taken = from[i];
  from[i] = from.back();
  from.pop_back();
  return taken;
}
template <class T>
T take(std::vector<T>& from) {
  return take(from, machine.draw(unsigned(from.size())));
}

inline void report_deadlock() {
  std::string waits;
  for (auto const& cta : machine.ctas)
    for (size_t w = 0; w < cta->threads.size(); w += 32) {
      std::map<std::string, int> counts;
      for (size_t i = w; i < w + 32; ++i)
        if (!cta->threads[i].done) ++counts[cta->threads[i].waits_for];
      for (auto const& [what, count] : counts)
        waits += "; " + std::to_string(count) + " of CTA " + std::to_string(cta->index) + "'s warp " +
                 std::to_string(w / 32) + ": " + what;
    }
  fail("deadlock%s", waits.c_str());
}

inline void check_end(Cta const& cta) {
  for (Transfer const& transfer : machine.transfers)
    if (transfer.cta == &cta) fail("ends while something is under way to its shared memory");
  for (auto const& [word, b] : cta.mbarriers) {
    if (b.bytes != 0) fail("ends while an mbarrier expects %ld bytes", long(b.bytes));
    if (*word != kMbarrierWord) fail("something wrote over an mbarrier");
  }
  for (Thread const& t : cta.threads)
    if (!t.issued.empty() || !t.groups.empty()) fail("thread %u never waited for its wgmmas", t.id);
  for (int i = cta.shared_bytes; i < kSharedBytes + 1024; ++i)
    if (cta.memory[i] != 0xff) fail("byte %d of shared memory was written, beyond its end", i);
}

inline void run_transfer(Transfer const& transfer) {
  machine.cta = transfer.cta;
  if (transfer.cta->ended()) fail("something comes to a CTA that has ended");
  transfer.run();
}
inline void run_thread(Thread& next) {
  machine.current = &next;
  machine.cta = next.cta;
  threadIdx = {next.id, 0, 0};
  blockIdx = {next.cta->index, 0, 0};
  swapcontext(&machine.scheduler, &next.context);
  machine.current = nullptr;
  if (!machine.error.empty()) throw std::runtime_error(machine.error);
  next.cta->done += next.done;
  if (next.done && next.cta->ended()) check_end(*next.cta);
}

inline void run_threads() {
  Mood mood;
  auto const some_are_left = [] {
    return std::any_of(machine.ctas.begin(), machine.ctas.end(), [](auto const& c) { return !c->ended(); });
  };
  while (some_are_left()) {
    mood.pass();
    bool const idle = machine.ready.empty();
    if (!machine.starting.empty() && (idle || machine.draw(mood.start_steps) == 0)) {
      for (Thread& t : take(machine.starting)->threads) machine.ready.push_back(&t);
      continue;
    }
    if (!machine.transfers.empty() && (idle || machine.draw(mood.transfer_steps) == 0)) {
      run_transfer(take(machine.transfers));
      continue;
    }
    if (!machine.sleeping.empty() && (idle || machine.draw(mood.sleep_steps) == 0)) {
      machine.ready.push_back(take(machine.sleeping));
      continue;
    }
    if (idle) report_deadlock();
    size_t pick = machine.draw(unsigned(machine.ready.size()));
    for (int i = 0; i < 6 && mood.is_slow(*machine.ready[pick]); ++i)
      pick = machine.draw(unsigned(machine.ready.size()));
    run_thread(*take(machine.ready, pick));
  }
}

// ---- a launch
struct Grid {
  unsigned ctas, ctas_of_cluster;
  int threads, shared_bytes;
};
// The clusters from `first` on, all at once.
inline void run_clusters(Grid const& grid, unsigned const* first, unsigned count) {
  // NaN in all formats.  Each CTA's memory is aligned as the swizzles need it.
  constexpr size_t kBytes = kSharedBytes + 1024;
  unsigned const ctas = count * grid.ctas_of_cluster;
  std::unique_ptr<void, decltype(&free)> const memory(aligned_alloc(1024, ctas * kBytes), free);
  memset(memory.get(), 0xff, ctas * kBytes);
  std::vector<Cluster> clusters(count);
  machine.ctas.clear(), machine.starting.clear();
  machine.ready.clear(), machine.sleeping.clear(), machine.polling.clear(), machine.transfers.clear();
  for (unsigned i = 0; i < ctas; ++i) {
    machine.ctas.push_back(std::make_unique<Cta>());
    Cta& cta = *machine.ctas.back();
    cta.index = first[i / grid.ctas_of_cluster] * grid.ctas_of_cluster + i % grid.ctas_of_cluster;
    cta.cluster = &clusters[i / grid.ctas_of_cluster];
    cta.cluster->ctas.push_back(&cta);
    cta.memory = static_cast<uint8_t*>(memory.get()) + i * kBytes;
    cta.shared_bytes = grid.shared_bytes;
    prepare_threads(cta, grid.threads, size_t(i) * grid.threads);
    machine.starting.push_back(&cta);
  }
  run_threads();
}
// CTAs that need not be there at once may be, or come in any order.
inline void run_grid(Grid const& grid, bool cooperative) {
  std::vector<unsigned> clusters(grid.ctas / grid.ctas_of_cluster);
  for (unsigned i = 0; i < clusters.size(); ++i) clusters[i] = i;
  std::shuffle(clusters.begin(), clusters.end(), machine.random);
  if (cooperative || machine.draw(2) == 0)
    return run_clusters(grid, clusters.data(), unsigned(clusters.size()));
  for (unsigned const& cluster : clusters) run_clusters(grid, &cluster, 1);
}

}  // namespace emulator
