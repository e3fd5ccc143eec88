// Which kernels serve which spec.  Filled from Python (comfuse/ops/resolver.py) through C functions;
// entries are never removed, so what find() returns stays valid.
#pragma once

#include <comfuse/abi.h>
#include <stdint.h>

#include <mutex>
#include <string>
#include <string_view>
#include <vector>

extern "C" {

enum CfSpace : int32_t { CF_ROW = 1, CF_COLUMN = 2, CF_TILE = 3 };
enum CfDType : int32_t { CF_BF16 = 0, CF_FP16 = 1, CF_FP32 = 2 };

// A tensor operand or an output of a spec.
typedef struct {
  char const* name;
  int32_t space;  // CfSpace
  int32_t dtype;  // CfDType
} CfSlot;

// What the binding has to know of a spec; mirrored in comfuse/ops/resolver.py.
typedef struct {
  int64_t n;
  int64_t k;
  int32_t dtype;  // CfDType of A and B
  int32_t operand_count;
  int32_t output_count;
  int32_t scalar_count;
  CfSlot operands[CF_MAX_OPERANDS];
  CfSlot outputs[CF_MAX_OUTPUTS];
} CfProgram;

// Makes sure that the table has a kernel for (spec, m, device), or for m = 0 the program alone.  Returns 0 if
// it has, 1 if the reference is to run instead, 2 on an error whose message was given to comfuse_set_error.
typedef int (*CfResolver)(char const* spec, int64_t length, int64_t m, int32_t device);
}

namespace comfuse::binding {

using LaunchFunction = int (*)(CfArgs const*, void* workspace, void* stream);
using WorkspaceFunction = int64_t (*)(int64_t m);

struct Kernel {
  int64_t min_m, max_m;  // serves launches with so many rows
  std::string name;
  LaunchFunction launch;
  WorkspaceFunction workspace;
};

struct Slot {
  std::string name;
  CfSpace space;
  CfDType dtype;
};

struct Program {
  int64_t n, k;
  CfDType dtype;
  int scalars;
  std::vector<Slot> operands, outputs;
};

// A program and the kernel that serves it for one m.
struct Found {
  Program const* program = nullptr;
  Kernel const* kernel = nullptr;  // null: the reference is to run, or m is 0
};

// Looks up, asking the resolver on a miss.  Throws what the resolver reports.
Found find(std::string_view spec, int64_t m, int device);

}  // namespace comfuse::binding
