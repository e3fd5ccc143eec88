#include "checks.h"

#include <string>

#include "errors.h"

namespace comfuse::binding {
namespace {

constexpr int64_t kMostRows = INT32_MAX;

std::string device_name(View const& view) {
  if (view.device_type == aoti_torch_device_type_cpu()) return "cpu";
  if (view.device_type == aoti_torch_device_type_cuda()) return "cuda:" + std::to_string(view.device_index);
  return "another kind of device";
}

void check_kind(std::string const& name, Slot const& slot, View const& a, View const& view) {
  if (view.dtype != torch_dtype(slot.dtype))
    fail("DTypeError",
         name + " is " + dtype_name(view.dtype) + "; allowed: " + dtype_name(torch_dtype(slot.dtype)));
  if (view.device_type != a.device_type || view.device_index != a.device_index)
    fail("DeviceError", name + " is on " + device_name(view) + "; allowed: a's device, " + device_name(a));
}

[[noreturn]] void fail_shape(Slot const& slot, View const& view) {
  fail("ShapeError",
       slot.name + " is of shape " + tuple_text(view.sizes, view.rank) + "; allowed: " + slot.allowed);
}

// For what has to fit a: says what a is.
[[noreturn]] void fail_shape(Slot const& slot, View const& view, View const& a) {
  fail("ShapeError", slot.name + " is of shape " + tuple_text(view.sizes, view.rank) +
                         "; allowed: " + slot.allowed + ", for a of shape " + tuple_text(a.sizes, a.rank));
}

int64_t product(View const& view, int64_t rank) {
  int64_t result = 1;
  for (int64_t i = 0; i < rank; ++i) result *= view.sizes[i];
  return result;
}

bool is(View const& view, std::initializer_list<int64_t> sizes) {
  if (view.rank != int64_t(sizes.size())) return false;
  int64_t const* size = view.sizes;
  for (int64_t wanted : sizes)
    if (*size++ != wanted) return false;
  return true;
}

bool has_leading_sizes(View const& view, int64_t leading, View const& a) {
  for (int64_t i = 0; i < leading; ++i)
    if (view.sizes[i] != a.sizes[i]) return false;
  return true;
}

// Whether a view begins with two dimensions that walk the batches of a batched program, either of which may
// be 1 for all that there are of it.
bool has_two_of_batches(Program const& program, View const& view, int64_t batches) {
  if (!program.batched || view.rank != 4) return false;
  int64_t const outer = view.sizes[0], inner = view.sizes[1];
  return outer * inner == batches || (inner == 1 && outer > 0 && batches % outer == 0) ||
         (outer == 1 && inner > 0 && batches % inner == 0);
}

bool fits_row(Program const& program, Slot const& slot, Extent const& extent, View const& view) {
  int64_t const n = slot.n, batches = extent.batches;
  if (!program.batched)
    return view.rank >= 1 && view.sizes[view.rank - 1] == n && product(view, view.rank) == n;
  if (has_two_of_batches(program, view, batches)) return view.sizes[2] == 1 && view.sizes[3] == n;
  return is(view, {n}) || is(view, {1, n}) || is(view, {batches, n}) || is(view, {1, 1, n}) ||
         is(view, {batches, 1, n});
}

bool fits_column(Program const& program, Extent const& extent, View const& a, View const& view) {
  if (!program.batched) {
    bool const keeps_column = view.rank == a.rank && view.sizes[view.rank - 1] == 1;
    if (keeps_column || view.rank == a.rank - 1) return has_leading_sizes(view, a.rank - 1, a);
    return view.rank != a.rank && product(view, view.rank) == extent.m;  // flattened
  }
  int64_t const m = extent.m, batches = extent.batches;
  if (has_two_of_batches(program, view, batches)) return view.sizes[2] == m && view.sizes[3] == 1;
  return is(view, {m}) || is(view, {m, 1}) || is(view, {1, m}) || is(view, {batches, m}) ||
         is(view, {1, m, 1}) || is(view, {batches, m, 1});
}

bool fits_tile(Program const& program, Slot const& slot, Extent const& extent, View const& a,
               View const& view) {
  int64_t const n = slot.n;
  if (has_two_of_batches(program, view, extent.batches)) {
    auto const fits = [&](int64_t size, int64_t whole) {
      return size == whole || (slot.strided && size == 1);
    };
    return fits(view.sizes[2], extent.m) && fits(view.sizes[3], n);
  }
  if (slot.strided) {
    int64_t sizes[kMaxRank];
    for (int64_t i = 0; i + 1 < a.rank; ++i) sizes[i] = a.sizes[i];
    sizes[a.rank - 1] = n;
    if (broadcasts(view, sizes, a.rank)) return true;
  }
  if (program.batched)
    return is(view, {extent.m, n}) || is(view, {1, extent.m, n}) || is(view, {extent.batches, extent.m, n});
  return view.rank >= 1 && view.sizes[view.rank - 1] == n && product(view, view.rank - 1) == extent.m &&
         (view.rank != a.rank || has_leading_sizes(view, view.rank - 1, a));
}

}  // namespace

bool broadcasts(View const& view, int64_t const* sizes, int64_t rank) {
  if (view.rank > rank) return false;
  for (int64_t i = 1; i <= view.rank; ++i)
    if (view.sizes[view.rank - i] != 1 && view.sizes[view.rank - i] != sizes[rank - i]) return false;
  return true;
}

Extent check_a(Program const& program, View const& a) {
  bool const ranked = program.batched ? a.rank == 3 : program.splits_heads ? a.rank >= 2 : a.rank >= 1;
  if (!ranked || a.rank > kMaxRank || a.sizes[a.rank - 1] != program.a.k) fail_shape(program.a, a);
  check_kind(program.a.name, program.a, a, a);
  Extent extent;
  if (program.batched)
    extent = {a.sizes[1], a.sizes[0]};
  else
    extent.m = product(a, a.rank - 1);
  if (extent.rows() > kMostRows)
    fail("ShapeError", "a is of shape " + tuple_text(a.sizes, a.rank) + "; allowed: at most " +
                           std::to_string(kMostRows) + " rows in all");
  return extent;
}

void check_b(Program const& program, Slot const& slot, View const& a, View const& b) {
  int64_t const n = slot.n, k = slot.k;
  if (is_a(slot)) {
    if (b.rank != a.rank || b.sizes[b.rank - 1] != k || !has_leading_sizes(b, a.rank - 1, a))
      fail_shape(slot, b, a);
  } else if (!is(b, {n, k}) && !(program.batched && is(b, {a.sizes[0], n, k})) &&
             !(has_two_of_batches(program, b, a.sizes[0]) && b.sizes[2] == n && b.sizes[3] == k)) {
    if (program.batched) fail_shape(slot, b, a);
    fail_shape(slot, b);
  }
  check_kind(slot.name, slot, a, b);
}

void check_operand(Program const& program, Extent const& extent, View const& a, Slot const& slot,
                   View const& operand) {
  check_kind(slot.name, slot, a, operand);
  bool const fits = slot.space == CF_ROW      ? fits_row(program, slot, extent, operand)
                    : slot.space == CF_COLUMN ? fits_column(program, extent, a, operand)
                                              : fits_tile(program, slot, extent, a, operand);
  if (!fits || operand.rank > kMaxRank) fail_shape(slot, operand, a);
}

void check_output(Program const& program, View const& a, int index, View const& output) {
  Slot const& slot = program.outputs[size_t(index)];
  std::string const name = "out[" + std::to_string(index) + "]";
  Shape const shape = output_shape(program, slot, a);
  bool same = output.rank == shape.rank;
  for (int64_t i = 0; same && i < shape.rank; ++i) same = output.sizes[i] == shape.sizes[i];
  if (!same)
    fail("ShapeError", name + " is of shape " + tuple_text(output.sizes, output.rank) +
                           "; allowed: " + tuple_text(shape.sizes, shape.rank));
  check_kind(name, slot, a, output);
}

Shape output_shape(Program const& program, Slot const& slot, View const& a) {
  Shape shape;
  bool const has_rows = slot.space != CF_ROW && slot.space != CF_SCALAR;
  int64_t const leading = has_rows ? a.rank - 1 : program.batched ? 1 : 0;
  for (int64_t i = 0; i < leading; ++i) shape.append(a.sizes[i]);
  if (slot.heads > 0) {
    int64_t const sequence = shape.sizes[shape.rank - 1];
    shape.sizes[shape.rank - 1] = slot.n / slot.heads;
    shape.append(sequence);
    shape.append(slot.heads);
  } else if (slot.space == CF_TILE || slot.space == CF_ROW) {
    shape.append(slot.n);
  } else if (slot.space == CF_GROUP) {
    shape.append(slot.n / program.group);
  }
  return shape;
}

}  // namespace comfuse::binding
