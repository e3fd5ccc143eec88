// A GPU on the host: a fiber for each thread, which another takes over from only where it waits.
#pragma once

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
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
  bool half, a_in_registers, accumulate, mn_major_a, mn_major_b;
  uint32_t const* a[4];
  uint64_t descriptor_a, descriptor_b;
  float* d;
};
struct WgmmaGroup {
  std::vector<Wgmma> wgmmas;
  bool done = false;
};

struct Cta;
struct Thread {
  ucontext_t context;
  Cta* cta = nullptr;
  unsigned id = 0;
  bool done = false;
  char const* waits_for = "";
  uint64_t in = 0, out = 0;  // of the collective at hand
  int source = 0;
  bool fenced = false;  // a wgmma.fence since the last wait
  std::vector<uint32_t> read;  // 16-byte units of shared memory, by ldmatrix, that may be under way
  std::vector<Wgmma> issued;
  std::vector<WgmmaGroup> groups;  // committed since the last wait for all
  long committed = 0;
  unsigned cluster_phase = 0;  // of the cluster's barrier, when the thread came to it
  uint64_t seen = 0;           // the last event before it polled; 0: it has not polled since it slept
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

// The barrier of all threads of a cluster.
struct Cluster {
  std::vector<Cta*> ctas;
  int arrived = 0;
  unsigned phase = 0;
  std::vector<Thread*> waiting;
};

struct Cta {
  unsigned index = 0;
  Cluster* cluster = nullptr;
  uint8_t* memory = nullptr;  // shared, and behind it bytes that nobody may write
  int shared_bytes = 0, registers = 0;
  size_t done = 0;  // threads
  std::vector<Thread> threads;
  std::vector<Meeting> warps;
  std::map<int, Meeting> named;
  std::map<uint64_t const*, Mbarrier> mbarriers;
  std::map<uint32_t, int> readers;     // of 16-byte units: threads that TMA might overtake
  std::vector<Thread*> multiplying[8];  // by warpgroup: those that wait for wgmmas of its other warps
  std::vector<Thread*> waiting_for_registers;

  bool ended() const { return done == threads.size(); }
};

// What comes to a CTA some time later.
struct Transfer {
  Cta* cta;
  std::function<void()> run;
};

struct Machine {
  static constexpr int processors = EMULATOR_PROCESSORS;
  std::mt19937_64 random;
  std::string error;
  std::function<void()> body;
  // ---- of the CTAs at hand
  std::vector<std::unique_ptr<Cta>> ctas;
  std::vector<Cta*> starting;
  std::vector<Thread*> ready;
  std::vector<Thread*> sleeping;  // could go on, but let others go first
  std::vector<Thread*> polling;   // for words in which nothing has changed
  uint64_t events = 1;            // changes of such words
  std::vector<Transfer> transfers;
  Cta* cta = nullptr;         // whose thread or transfer is at hand
  Thread* current = nullptr;  // null: the scheduler itself
  ucontext_t scheduler;

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
  machine.error = "CTA " + std::to_string(machine.cta == nullptr ? 0 : machine.cta->index);
  if (thread != nullptr) machine.error += ", thread " + std::to_string(thread->id);
  machine.error += std::string(": ") + text;
  if (thread == nullptr) throw std::runtime_error(machine.error);
  for (;;) swapcontext(&thread->context, &machine.scheduler);
}

inline Thread& self() { return *machine.current; }
inline Meeting& warp_of(Thread const& t) { return t.cta->warps[t.id / 32]; }
inline Thread& lane(int i) { return self().cta->threads[self().id / 32 * 32 + i]; }

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
  Meeting& meeting = self().cta->named[id];
  if (waits) return meet(meeting, count, "a named barrier", [] {});
  meeting.kind = "a named barrier";
  if (++meeting.arrived < count) return;
  meeting.arrived = 0;
  wake(meeting.waiting);
}

// barrier.cluster.arrive and .wait
inline void arrive_at_cluster() {
  Cluster& cluster = *self().cta->cluster;
  self().cluster_phase = cluster.phase;
  if (++cluster.arrived < int(cluster.ctas.size() * self().cta->threads.size())) return;
  cluster.arrived = 0;
  ++cluster.phase;
  wake(cluster.waiting);
}
inline void wait_for_cluster() {
  Cluster& cluster = *self().cta->cluster;
  if (self().cluster_phase != cluster.phase) return;
  cluster.waiting.push_back(&self());
  block("the cluster");
}

// ---- words that CTAs poll
inline void note_event() {
  ++machine.events;
  machine.sleeping.insert(machine.sleeping.end(), machine.polling.begin(), machine.polling.end());
  machine.polling.clear();
}
// A warp whose lanes have all polled since the last event need not poll again before the next.
inline void sleep_between_polls() {
  bool in_vain = true;
  for (int i = 0; i < 32; ++i) in_vain = in_vain && lane(i).seen == machine.events;
  (in_vain ? machine.polling : machine.sleeping).push_back(&self());
  block("words of other CTAs");
  self().seen = 0;
}

}  // namespace emulator
