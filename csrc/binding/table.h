// Which kernels serve which spec.  Filled from Python (comfuse/ops/resolver.py) through C functions;
// entries are never removed, so what is found here stays valid.
#pragma once

#include <comfuse/abi.h>
#include <stdint.h>

#include <deque>
#include <string>
#include <string_view>
#include <vector>

extern "C" {

enum CfSpace : int32_t { CF_SCALAR = 0, CF_ROW = 1, CF_COLUMN = 2, CF_GROUP = 3, CF_TILE = 4 };
enum CfDType : int32_t {
  CF_BF16 = 0,
  CF_FP16 = 1,
  CF_FP32 = 2,
  CF_E4M3 = 3,
  CF_E5M2 = 4,
  CF_INT8 = 5,
  CF_UINT8 = 6,
  CF_BOOL = 7,
  CF_INT32 = 8,
  CF_INT64 = 9
};
enum CfMajor : int32_t { CF_K_MAJOR = 0, CF_MN_MAJOR = 1 };

// A tensor of a spec: a factor, an operand or an output.
typedef struct {
  char const* name;
  char const* allowed;  // which shapes it may have, for messages
  int64_t n;            // columns of the tiles that it is or belongs to; rows of a factor B, 0 of an A
  int64_t k;            // of a factor: columns
  int64_t heads;        // of an output: the head size, or 0
  int32_t place;        // of a factor or operand: which of a call's operands, -1 for its b
  int32_t space;        // CfSpace
  int32_t dtype;        // CfDType
  int32_t strided;      // an operand may be broadcast over a part of the rows
  int32_t whole_rows;  // TMA or vector stores move its rows; otherwise they may lie anywhere in two levels
  int32_t major;       // CfMajor, of a factor
} CfSlot;

// What the binding has to know of a spec, or of a chain, whose factors and operands come link by link;
// mirrored in comfuse/ops/facts.py.
typedef struct {
  int64_t group;  // columns of a group, or 0
  int32_t factor_count;
  int32_t batched;
  int32_t operand_count;
  int32_t output_count;
  int32_t scalar_count;
  int32_t reserved;
  CfSlot a;
  CfSlot b[CF_MAX_FACTORS];
  CfSlot operands[CF_MAX_OPERANDS];
  CfSlot outputs[CF_MAX_OUTPUTS];
} CfProgram;

// Makes sure that the table has a kernel for (spec, rows, device), or for rows = 0 the program alone. Returns
// 0 if it has, 1 if the reference is to run instead, 2 on an error whose message was given to
// comfuse_set_error.
typedef int (*CfResolver)(char const* spec, int64_t length, int64_t rows, int32_t device);
}

namespace comfuse::binding {

using LaunchFunction = int (*)(CfArgs const*, void* workspace, void* stream);
using WorkspaceFunction = int64_t (*)(int64_t m, int64_t batches);

struct Kernel {
  int64_t min_rows, max_rows;  // serves launches with so many rows (Extent::rows)
  std::string name;
  LaunchFunction launch;
  WorkspaceFunction workspace;
};

struct Slot {
  std::string name, allowed;
  int64_t n, k, heads;
  int place;
  CfSpace space;
  CfDType dtype;
  bool strided, whole_rows;
  CfMajor major;  // of a factor
};
// Whether a factor is the A of a product, not its B.
inline bool is_a(Slot const& factor) { return factor.n == 0; }

struct Program {
  int64_t group;
  bool batched;
  int scalars;
  Slot a;
  std::vector<Slot> b;  // one a product, link by link; a second product's own A before its B
  std::vector<Slot> operands, outputs;
  bool splits_heads;  // an output is head-split: a has a sequence dimension
  bool reduces_rows;  // an output is over all rows: it has a value even where there are none

  Program(CfProgram const& facts);
};

// One spec.  Its program never changes; kernels are added under the table's lock and do not move.
struct Entry {
  std::string spec;
  Program program;
  size_t place;  // in each thread's memory of what it found last
  std::deque<Kernel> kernels;
};

// Both ask the resolver on a miss, and throw what it reports.
Entry const& find_program(std::string_view spec, int device);
// Null: the reference is to run.
Kernel const* find_kernel(Entry const& entry, int64_t rows, int device);

}  // namespace comfuse::binding
