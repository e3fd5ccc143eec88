// What a process without Python has in its place: the ops' schemas, and the programs and kernels of one
// folder, as its table lists them (comfuse/ops/served.py).
#include <dlfcn.h>
#include <torch/csrc/stable/library.h>

#include <fstream>
#include <sstream>
#include <string>

#include "errors.h"
#include "table.h"

#ifndef COMFUSE_NAMESPACE
#define COMFUSE_NAMESPACE comfuse
#endif
#define CF_TEXT_OF(name) #name
#define CF_TEXT(name) CF_TEXT_OF(name)
#define CF_BINDING_API extern "C" __attribute__((visibility("default")))

CF_BINDING_API void comfuse_register_program(char const* spec, int64_t length, CfProgram const* facts);
CF_BINDING_API int comfuse_register_kernel(char const* spec, int64_t length, int64_t min_rows,
                                           int64_t max_rows, char const* name, void* launch, void* workspace);

namespace comfuse::binding {
namespace {

// Both are comfuse/ops/served.py's.
constexpr char const* kTable = "table.txt";
constexpr char const* kHeader = "comfuse 1";

// Its slots point to texts of its own.
struct Facts {
  CfProgram program{};
  std::deque<std::string> texts;
  int factors = 0, operands = 0, outputs = 0;
};

char const* text(Facts& facts, std::istream& line) {
  std::string word;
  std::getline(line, word, '\t');
  facts.texts.push_back(word);
  return facts.texts.back().c_str();
}

CfSlot slot(Facts& facts, std::istream& line) {
  CfSlot slot{};
  line >> slot.n >> slot.k >> slot.heads >> slot.place >> slot.space >> slot.dtype >> slot.strided >>
      slot.whole_rows >> slot.major;
  line.ignore(1);
  slot.name = text(facts, line);
  slot.allowed = text(facts, line);
  return slot;
}

void add(CfSlot* slots, int most, int& count, CfSlot const& slot) {
  if (count == most) fail("LoadError", std::string(slot.name) + " is one slot too many");
  slots[count++] = slot;
}

void* symbol(void* file, std::string const& name) {
  void* const found = dlsym(file, name.c_str());
  if (found == nullptr) fail("LoadError", "it has no function " + name);
  return found;
}

void add_kernel(std::string const& folder, std::string const& spec, std::istream& line) {
  int64_t low, high;
  std::string name, file;
  line >> low >> high >> name >> file;
  void* const opened = dlopen((folder + "/" + file).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) fail("LoadError", dlerror());
  if (comfuse_register_kernel(spec.data(), int64_t(spec.size()), low, high, name.c_str(),
                              symbol(opened, "cf_launch_" + name), symbol(opened, "cf_workspace_" + name)))
    fail("LoadError", name + " is of no program");
}

void serve(std::string const& folder) {
  std::ifstream table(folder + "/" + kTable);
  std::string line, spec, word;
  if (!std::getline(table, line) || line != kHeader)
    fail("LoadError", std::string("there is no ") + kTable + ", or it is of another version");
  static auto* const library =
      new torch::stable::detail::StableLibrary(torch::stable::detail::StableLibrary::Kind::FRAGMENT,
                                               CF_TEXT(COMFUSE_NAMESPACE), nullptr, __FILE__, __LINE__);
  Facts facts;
  while (std::getline(table, line)) {
    std::istringstream rest(line);
    rest >> word;
    if (word == "schema") {
      library->def(line.substr(word.size() + 1).c_str());
    } else if (word == "program") {
      spec = line.substr(word.size() + 1);
      facts = {};
    } else if (word == "facts") {
      CfProgram& program = facts.program;
      rest >> program.group >> program.batched >> program.scalar_count;
    } else if (word == "a") {
      facts.program.a = slot(facts, rest);
    } else if (word == "b") {
      add(facts.program.b, CF_MAX_FACTORS, facts.factors, slot(facts, rest));
    } else if (word == "operand") {
      add(facts.program.operands, CF_MAX_OPERANDS, facts.operands, slot(facts, rest));
    } else if (word == "output") {
      add(facts.program.outputs, CF_MAX_OUTPUTS, facts.outputs, slot(facts, rest));
    } else if (word == "end") {
      facts.program.factor_count = facts.factors;
      facts.program.operand_count = facts.operands;
      facts.program.output_count = facts.outputs;
      comfuse_register_program(spec.data(), int64_t(spec.size()), &facts.program);
    } else if (word == "kernel") {
      add_kernel(folder, spec, rest);
    } else {
      fail("LoadError", "it says " + word + ", which this binding does not know");
    }
    if (rest.fail()) fail("LoadError", "its table is damaged at: " + line.substr(0, 80));
  }
}

}  // namespace
}  // namespace comfuse::binding

// Makes a process without Python serve what is in a folder: defines the ops, opens its kernels.  To be called
// once, before a model is loaded that calls the ops.  Returns null, or what is wrong, for the caller to copy.
CF_BINDING_API char const* comfuse_serve(char const* folder) {
  static std::string error;
  try {
    comfuse::binding::serve(folder);
    return nullptr;
  } catch (std::exception const& e) {
    error = std::string(folder) + ": " + e.what();
    return error.c_str();
  }
}
