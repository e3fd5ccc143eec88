// One CTA on the host: a fiber for each thread, which another takes over from only where it waits.
//
// Which thread goes on, and when what is asynchronous happens, is drawn at random, with whole warps slow for
// a while: what a protocol does not order comes in any order.
#pragma once

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <functional>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

struct Dim {
  unsigned x, y, z;
};
inline Dim threadIdx, blockIdx, gridDim;

namespace emulator {

constexpr int kSharedBytes = 232448, kSharedBase = 1024;  // the first KB of shared memory is the system's
constexpr unsigned kWarpgroupThreads = 128;
constexpr uint64_t kMbarrierWord =
    0x6d62617272696572;  // what an mbarrier is in memory: its state is in Machine

// A wgmma of one thread: registers are read and written when it runs, not when it is issued.
struct Wgmma {
  int n;
  bool half, a_in_registers, accumulate;
  uint32_t const* a[4];
  uint64_t descriptor_a, descriptor_b;
  float* d;
};
struct WgmmaGroup {
  std::vector<Wgmma> wgmmas;
  bool done = false;
};

struct Thread {
  ucontext_t context;
  void* stack = nullptr;
  unsigned id = 0;
  bool done = false;
  char const* waits_for = "";
  uint64_t in = 0, out = 0;  // of the collective at hand
  int source = 0;
  bool fenced = false;  // a wgmma.fence since the last wait
  std::vector<uint32_t> read;  // 16-byte units of shared memory, by ldmatrix since the last proxy fence
  std::vector<Wgmma> issued;
  std::vector<WgmmaGroup> groups;  // committed since the last wait for all
  long committed = 0;
};

// Threads that go on when `count` of them are there.
struct Meeting {
  int arrived = 0;
  char const* kind = "";
  std::vector<Thread*> waiting;
};

struct Mbarrier {
  int count, pending;
  int64_t bytes = 0;
  unsigned phase = 0;
  std::vector<Thread*> waiting;
};

using Transfer = std::function<void()>;

struct Machine {
  int processors = 2;
  std::mt19937_64 random;
  std::string error;
  // ---- of the CTA at hand
  std::vector<Thread> threads;
  std::vector<Thread*> ready;
  std::vector<Meeting> warps;
  std::map<int, Meeting> named;
  std::map<uint64_t const*, Mbarrier> mbarriers;
  std::vector<Thread*> sleeping;  // could go on, but let others go first
  std::vector<Transfer> transfers;
  std::map<uint32_t, int> readers;  // of 16-byte units: threads that TMA might overtake
  std::vector<Thread*> multiplying[8];  // by warpgroup: those that wait for wgmmas of its other warps
  Thread* current = nullptr;  // null: the scheduler itself
  ucontext_t scheduler;
  std::function<void()> body;
  std::vector<Thread*> waiting_for_registers;
  int registers = 0, shared_bytes = 0;

  unsigned draw(unsigned below) { return unsigned(random() % below); }
};
inline Machine machine;

// Ends the launch.
[[noreturn]] inline void fail(char const* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  Thread* const thread = machine.current;
  machine.error = "CTA " + std::to_string(blockIdx.x);
  if (thread != nullptr) machine.error += ", thread " + std::to_string(thread->id);
  machine.error += std::string(": ") + text;
  if (thread == nullptr) throw std::runtime_error(machine.error);
  for (;;) swapcontext(&thread->context, &machine.scheduler);
}

inline Thread& self() { return *machine.current; }
inline Meeting& warp_of(Thread const& t) { return machine.warps[t.id / 32]; }
inline Thread& lane(int i) { return machine.threads[self().id / 32 * 32 + i]; }

inline void block(char const* what) {
  self().waits_for = what;
  swapcontext(&self().context, &machine.scheduler);
  self().waits_for = "";
}
inline void wake(std::vector<Thread*>& waiting) {
  machine.ready.insert(machine.ready.end(), waiting.begin(), waiting.end());
  waiting.clear();
}

// Where others may come first: now and then all of them do.
inline void give_way() {
  if (machine.draw(4) != 0) return;
  machine.sleeping.push_back(&self());
  block("its turn");
}

// The last of `count` threads calls `last`, and all go on.
template <class Last>
void meet(Meeting& meeting, int count, char const* kind, Last const& last) {
  if (meeting.arrived > 0 && strcmp(meeting.kind, kind) != 0)
    fail("comes to %s, others of the same threads to %s", kind, meeting.kind);
  meeting.kind = kind;
  if (++meeting.arrived < count) {
    meeting.waiting.push_back(&self());
    block(kind);
    return;
  }
  last();
  meeting.arrived = 0;
  wake(meeting.waiting);
}
template <class Last>
void meet_warp(char const* kind, Last const& last) {
  meet(warp_of(self()), 32, kind, last);
}
inline void meet_warp(char const* kind) {
  meet_warp(kind, [] {});
}

template <class T>
T shuffle(T value, int source, char const* kind) {
  static_assert(sizeof(T) <= 8);
  self().in = 0;
  memcpy(&self().in, &value, sizeof value);
  self().source = source & 31;
  meet_warp(kind, [] {
    for (int i = 0; i < 32; ++i) lane(i).out = lane(lane(i).source).in;
  });
  memcpy(&value, &self().out, sizeof value);
  return value;
}

// bar.sync and bar.arrive of `count` threads.
inline void named_barrier(int id, int count, bool waits) {
  Meeting& meeting = machine.named[id];
  if (waits) return meet(meeting, count, "a named barrier", [] {});
  meeting.kind = "a named barrier";
  if (++meeting.arrived < count) return;
  meeting.arrived = 0;
  wake(meeting.waiting);
}

// ---- the scheduler
inline void start_thread() {
  machine.body();
  self().done = true;
  for (;;) swapcontext(&self().context, &machine.scheduler);
}

inline void prepare_threads(int count) {
  constexpr size_t kStack = 256 << 10;
  for (size_t i = 0; i < machine.threads.size(); ++i) munmap(machine.threads[i].stack, kStack);
  machine.threads = std::vector<Thread>(count);
  machine.ready.clear();
  machine.sleeping.clear();
  for (int i = 0; i < count; ++i) {
    Thread& t = machine.threads[i];
    t.id = i;
    t.stack =
        mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (t.stack == MAP_FAILED) throw std::runtime_error("no memory for a thread's stack");
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack;
    t.context.uc_stack.ss_size = kStack;
    t.context.uc_link = nullptr;
    makecontext(&t.context, start_thread, 0);
    machine.ready.push_back(&t);
  }
}

// How the machine behaves for a while: which warps are slow, and how long transfers and sleep take.
struct Mood {
  uint64_t slow_warps = 0;
  unsigned transfer_steps = 1, sleep_steps = 1, left = 0;

  void pass() {
    if (left-- > 0) return;
    left = 200 + machine.draw(8000);
    slow_warps = machine.draw(3) == 0 ? 0 : machine.random() & machine.random();
    transfer_steps = 1u << machine.draw(12), sleep_steps = 1u << machine.draw(14);
  }
  bool is_slow(Thread const& t) const { return slow_warps >> t.id / 32 & 1; }
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
  for (size_t w = 0; w < machine.threads.size(); w += 32) {
    std::map<std::string, int> counts;
    for (size_t i = w; i < w + 32; ++i)
      ++counts[machine.threads[i].done ? "done" : machine.threads[i].waits_for];
    for (auto const& [what, count] : counts)
      if (what != "done")
        waits += "; " + std::to_string(count) + " of warp " + std::to_string(w / 32) + ": " + what;
  }
  fail("deadlock%s", waits.c_str());
}

inline void run_threads() {
  Mood mood;
  size_t done = 0;
  while (done < machine.threads.size()) {
    mood.pass();
    bool const idle = machine.ready.empty();
    if (!machine.transfers.empty() && (idle || machine.draw(mood.transfer_steps) == 0)) {
      take(machine.transfers)();
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
    Thread* const next = take(machine.ready, pick);
    machine.current = next;
    threadIdx = {next->id, 0, 0};
    swapcontext(&machine.scheduler, &next->context);
    machine.current = nullptr;
    if (!machine.error.empty()) throw std::runtime_error(machine.error);
    done += next->done;
  }
}

}  // namespace emulator

namespace comfuse::sm90 {
// Shared memory, and behind it bytes that nobody may write.
__attribute__((aligned(1024))) inline uint8_t memory[emulator::kSharedBytes + 1024];
}  // namespace comfuse::sm90

namespace emulator {

inline void check_end() {
  if (!machine.transfers.empty()) fail("ends while TMA is still writing to its shared memory");
  for (auto const& [word, b] : machine.mbarriers) {
    if (b.bytes != 0) fail("ends while an mbarrier expects %ld bytes", long(b.bytes));
    if (*word != kMbarrierWord) fail("something wrote over an mbarrier");
  }
  for (Thread const& t : machine.threads)
    if (!t.issued.empty() || !t.groups.empty()) fail("thread %u never waited for its wgmmas", t.id);
  for (int i = machine.shared_bytes; i < kSharedBytes + 1024; ++i)
    if (comfuse::sm90::memory[i] != 0xff) fail("byte %d of shared memory was written, beyond its end", i);
}

inline void run_cta(int threads, int shared_bytes, std::function<void()> const& body) {
  machine.body = body;
  machine.shared_bytes = shared_bytes;
  machine.registers = 0;  // all are dealt out at first
  machine.waiting_for_registers.clear();
  machine.warps = std::vector<Meeting>(threads / 32);
  machine.named.clear();
  machine.mbarriers.clear();
  machine.transfers.clear();
  machine.readers.clear();
  for (auto& waiting : machine.multiplying) waiting.clear();
  memset(comfuse::sm90::memory, 0xff, sizeof comfuse::sm90::memory);  // NaN in all formats
  prepare_threads(threads);
  run_threads();
  check_end();
}

}  // namespace emulator
