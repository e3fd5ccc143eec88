#include "table.h"

#include <atomic>
#include <deque>
#include <stdexcept>
#include <unordered_map>

#include "cuda_api.h"
#include "errors.h"

namespace comfuse::binding {
namespace {

struct Entry {
  std::string spec;
  Program program;
  std::deque<Kernel> kernels;  // a deque does not move what it holds; of two that serve one m, the later does
};

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
thread_local std::string resolver_error;

std::vector<Slot> copy(CfSlot const* slots, int count) {
  std::vector<Slot> result;
  for (int i = 0; i < count; ++i)
    result.push_back({slots[i].name, CfSpace(slots[i].space), CfDType(slots[i].dtype)});
  return result;
}

Found lookup(std::string_view spec, int64_t m) {
  std::lock_guard<std::mutex> lock(table().mutex);
  auto const found = table().index.find(spec);
  if (found == table().index.end()) return {};
  Entry const& entry = *found->second;
  for (auto kernel = entry.kernels.rbegin(); kernel != entry.kernels.rend(); ++kernel)
    if (kernel->min_m <= m && m <= kernel->max_m) return {&entry.program, &*kernel};
  return {&entry.program, nullptr};
}

}  // namespace

Found find(std::string_view spec, int64_t m, int device) {
  Found found = lookup(spec, m);
  if (m == 0 && found.program != nullptr) return found;
  if (found.kernel != nullptr && runs_kernels(device)) return found;

  CfResolver const resolve = resolver.load();
  if (resolve == nullptr) fail("LoadError", "the binding was loaded without comfuse; import comfuse first");
  int const answer = resolve(spec.data(), int64_t(spec.size()), m, device);
  if (answer > 1) throw std::runtime_error("comfuse: " + resolver_error);
  found = lookup(spec, m);
  if (found.program == nullptr) fail("LoadError", "the resolver registered no program");
  if (answer == 1) found.kernel = nullptr;
  if (answer == 0 && m > 0 && found.kernel == nullptr) fail("LoadError", "the resolver registered no kernel");
  return found;
}

}  // namespace comfuse::binding

using namespace comfuse::binding;

#define CF_BINDING_API extern "C" __attribute__((visibility("default")))

// Registers what a spec is; a second registration changes nothing.
CF_BINDING_API void comfuse_register_program(char const* spec, int64_t length, CfProgram const* facts) {
  std::lock_guard<std::mutex> lock(table().mutex);
  if (table().index.count(std::string_view(spec, size_t(length)))) return;
  Program program{facts->n,
                  facts->k,
                  CfDType(facts->dtype),
                  facts->scalar_count,
                  copy(facts->operands, facts->operand_count),
                  copy(facts->outputs, facts->output_count)};
  table().entries.push_back({std::string(spec, size_t(length)), std::move(program), {}});
  Entry& entry = table().entries.back();
  table().index.emplace(entry.spec, &entry);
}

// Adds a kernel to a registered spec, for launches with min_m to max_m rows.  Returns 0, or 1 if the spec is
// unknown.
CF_BINDING_API int comfuse_register_kernel(char const* spec, int64_t length, int64_t min_m, int64_t max_m,
                                           char const* name, void* launch, void* workspace) {
  std::lock_guard<std::mutex> lock(table().mutex);
  auto const found = table().index.find(std::string_view(spec, size_t(length)));
  if (found == table().index.end()) return 1;
  found->second->kernels.push_back({min_m, max_m, name, reinterpret_cast<LaunchFunction>(launch),
                                    reinterpret_cast<WorkspaceFunction>(workspace)});
  return 0;
}

CF_BINDING_API void comfuse_set_resolver(CfResolver function) { resolver.store(function); }

// Called by the resolver, on its thread, before it returns 2.
CF_BINDING_API void comfuse_set_error(char const* message) { resolver_error = message; }
