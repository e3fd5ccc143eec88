#include "table.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

#include "cuda_api.h"
#include "errors.h"

namespace comfuse::binding {
namespace {

struct Table {
  std::mutex mutex;
  std::deque<Entry> entries;
  std::unordered_map<std::string_view, Entry*> index;  // keys are the entries' own texts
};

// Leaked, as everything here that a call may still use while the process ends.
Table& table() {
  static Table* const instance = new Table;
  return *instance;
}

std::atomic<CfResolver> resolver{nullptr};
std::atomic<uint64_t> generation{1};  // counts registrations of kernels
thread_local std::string resolver_error;

// What this thread found last: repeated calls of a few specs take neither the lock nor a hash of the text.
struct Recent {
  Entry const* entry;
  Kernel const* kernel;
  int64_t min_rows, max_rows;  // where the kernel is the one to take
  uint64_t generation;         // and when
};
constexpr size_t kRecent = 16;
thread_local Recent recent[kRecent];

// From a few words of the text; specs that share a place only push each other out.
size_t place_of(std::string_view spec) {
  uint64_t hash = spec.size(), word;
  size_t const step = spec.size() / 8;
  for (size_t at = 0; at + sizeof(word) <= spec.size(); at += step > sizeof(word) ? step : sizeof(word)) {
    std::memcpy(&word, spec.data() + at, sizeof(word));
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return size_t(hash % kRecent);
}

Entry const* lookup(std::string_view spec) {
  std::lock_guard<std::mutex> lock(table().mutex);
  auto const found = table().index.find(spec);
  return found == table().index.end() ? nullptr : found->second;
}

// Of two kernels that serve the same number of rows, the later does.
Recent lookup(Entry const& entry, int64_t rows) {
  uint64_t const now = generation.load(std::memory_order_acquire);
  std::lock_guard<std::mutex> lock(table().mutex);
  int64_t low = 0, high = INT64_MAX;  // where none of the later kernels serves
  for (auto kernel = entry.kernels.rbegin(); kernel != entry.kernels.rend(); ++kernel) {
    if (kernel->max_rows < rows)
      low = std::max(low, kernel->max_rows + 1);
    else if (kernel->min_rows > rows)
      high = std::min(high, kernel->min_rows - 1);
    else
      return {&entry, &*kernel, std::max(low, kernel->min_rows), std::min(high, kernel->max_rows), now};
  }
  return {&entry, nullptr, 0, 0, now};
}

// Whether there is a kernel to launch now.
bool resolve(std::string_view spec, int64_t rows, int device) {
  CfResolver const function = resolver.load();
  if (function == nullptr)
    fail("LoadError",
         "no kernel that was registered serves this call on this GPU, and the process has no comfuse to ask: "
         "import comfuse, or export the model for this GPU and these numbers of rows");
  int const answer = function(spec.data(), int64_t(spec.size()), rows, device);
  if (answer > 1) throw std::runtime_error("comfuse: " + resolver_error);
  return answer == 0;
}

Slot copy(CfSlot const& slot) {
  return {slot.name,
          slot.allowed,
          slot.n,
          slot.k,
          slot.heads,
          slot.place,
          CfSpace(slot.space),
          CfDType(slot.dtype),
          slot.strided != 0,
          slot.whole_rows != 0,
          CfMajor(slot.major)};
}

std::vector<Slot> copy(CfSlot const* slots, int count) {
  std::vector<Slot> result;
  for (int i = 0; i < count; ++i) result.push_back(copy(slots[i]));
  return result;
}

}  // namespace

Program::Program(CfProgram const& facts)
    : group(facts.group),
      batched(facts.batched != 0),
      scalars(facts.scalar_count),
      a(copy(facts.a)),
      b(copy(facts.b, facts.factor_count)),
      operands(copy(facts.operands, facts.operand_count)),
      outputs(copy(facts.outputs, facts.output_count)),
      splits_heads(false),
      reduces_rows(false) {
  for (Slot const& slot : outputs) {
    splits_heads = splits_heads || slot.heads > 0;
    reduces_rows = reduces_rows || slot.space == CF_ROW || slot.space == CF_SCALAR;
  }
}

Entry const& find_program(std::string_view spec, int device) {
  Recent& last = recent[place_of(spec)];
  if (last.entry != nullptr && last.entry->spec == spec) return *last.entry;
  Entry const* entry = lookup(spec);
  if (entry == nullptr) {
    resolve(spec, 0, device);
    entry = lookup(spec);
    if (entry == nullptr) fail("LoadError", "the resolver registered no program");
  }
  last = {entry, nullptr, 0, 0, 0};
  return *entry;
}

Kernel const* find_kernel(Entry const& entry, int64_t rows, int device) {
  Recent& last = recent[entry.place];
  bool const known = last.entry == &entry && last.generation == generation.load(std::memory_order_acquire) &&
                     last.min_rows <= rows && rows <= last.max_rows;
  Recent found = known ? last : lookup(entry, rows);
  if (found.kernel == nullptr || !runs_kernels(device)) {
    if (!resolve(entry.spec, rows, device)) return nullptr;
    found = lookup(entry, rows);
    if (found.kernel == nullptr) fail("LoadError", "the resolver registered no kernel");
  }
  last = found;
  return found.kernel;
}

}  // namespace comfuse::binding

using namespace comfuse::binding;

#define CF_BINDING_API extern "C" __attribute__((visibility("default")))

// Registers what a spec is; a second registration changes nothing.
CF_BINDING_API void comfuse_register_program(char const* spec, int64_t length, CfProgram const* facts) {
  std::lock_guard<std::mutex> lock(table().mutex);
  std::string_view const text(spec, size_t(length));
  if (table().index.count(text)) return;
  table().entries.push_back({std::string(text), Program(*facts), place_of(text), {}});
  Entry& entry = table().entries.back();
  table().index.emplace(entry.spec, &entry);
}

// Adds a kernel to a registered spec, for launches with min_rows to max_rows rows.  Returns 0, or 1 if the
// spec is unknown.
CF_BINDING_API int comfuse_register_kernel(char const* spec, int64_t length, int64_t min_rows,
                                           int64_t max_rows, char const* name, void* launch,
                                           void* workspace) {
  std::lock_guard<std::mutex> lock(table().mutex);
  auto const found = table().index.find(std::string_view(spec, size_t(length)));
  if (found == table().index.end()) return 1;
  found->second->kernels.push_back({min_rows, max_rows, name, reinterpret_cast<LaunchFunction>(launch),
                                    reinterpret_cast<WorkspaceFunction>(workspace)});
  generation.fetch_add(1, std::memory_order_release);
  return 0;
}

CF_BINDING_API void comfuse_set_resolver(CfResolver function) { resolver.store(function); }

// Called by the resolver, on its thread, before it returns 2.
CF_BINDING_API void comfuse_set_error(char const* message) { resolver_error = message; }
