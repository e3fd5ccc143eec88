#include "layout.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "errors.h"

namespace comfuse::binding {
namespace {

constexpr int64_t kAlignment = 16;  // of TMA, and of vectors of eight elements: addresses and row strides

bool aligned(int64_t bytes) { return bytes % kAlignment == 0; }
bool aligned(void const* data) { return aligned(int64_t(reinterpret_cast<intptr_t>(data))); }
int64_t padded(int64_t elements, int64_t bytes) {
  return (elements * bytes + kAlignment - 1) / kAlignment * kAlignment / bytes;
}

// Dimensions that one stride walks.
struct Level {
  int64_t size = 1, stride = 0;
};

// The levels of some dimensions, innermost first, as few as there can be.
struct Levels {
  static constexpr int kMost = 2;
  Level level[kMost];
  int count = 0;  // kMost + 1: more than a kernel can walk

  Levels(int64_t const* sizes, int64_t const* strides, int64_t rank) {
    for (int64_t i = rank - 1; i >= 0; --i) {
      if (sizes[i] == 1) continue;
      if (count > 0 && strides[i] == level[count - 1].stride * level[count - 1].size) {
        level[count - 1].size *= sizes[i];
        continue;
      }
      if (count++ == kMost) return;
      level[count - 1] = {sizes[i], strides[i]};
    }
  }
  bool fit(int most = kMost) const { return count <= most; }
};

void set_rows(CfTensor& tensor, Levels const& rows) {
  tensor.stride = rows.level[0].stride;
  tensor.row_period = rows.level[0].size;
  tensor.row_outer = rows.level[1].stride;
}

void set_columns(CfTensor& tensor, Levels const& columns) {
  tensor.column_stride = columns.count > 0 ? columns.level[0].stride : 1;
  tensor.column_period = columns.level[0].size;
  tensor.column_outer = columns.level[1].stride;
}

// The dimensions in front of a matrix or vector that count batches: none of what all share, one, or two of
// which either may be repeated.
struct Batches {
  Level outer, inner;

  // Of two, one may be given as 1 for all that there are of it.
  Batches(int64_t rank, int64_t const* sizes, int64_t const* strides, int64_t batches) {
    inner.size = batches;
    if (rank == 0) return;
    int64_t const last = rank - 1;
    if (rank == 2) inner.size = sizes[last] > 1 ? sizes[last] : batches / sizes[0];
    outer.size = batches / inner.size;
    if (sizes[last] > 1) inner.stride = strides[last];
    if (rank == 2 && sizes[0] > 1) outer.stride = strides[0];
    bool const are_one = inner.size == 1 || outer.stride == inner.stride * inner.size;
    if (outer.size > 1 && !are_one) return;
    if (inner.size == 1) inner.stride = outer.stride;
    inner.size = batches;
    outer = {};
  }
  // Whether TMA finds them: at multiples of a stride that are no more than it can count.
  bool are_matrices(int64_t bytes) const {
    int64_t const stride = std::gcd(outer.stride, inner.stride);
    int64_t const last = (outer.size - 1) * outer.stride + (inner.size - 1) * inner.stride;
    return aligned(stride * bytes) && (stride == 0 || last / stride < INT32_MAX);
  }
};

void set_batches(CfTensor& tensor, Batches const& batches) {
  tensor.batch_stride = batches.inner.stride;
  tensor.batch_period = batches.inner.size;
  tensor.batch_outer = batches.outer.stride;
}

// Contiguous columns in rows that are all `stride` apart.
CfTensor plain_tile(void* data, int64_t stride, int64_t rows, int64_t columns) {
  CfTensor tile{data, stride};
  tile.batch_period = 1;
  tile.row_period = rows > 1 ? rows : 1;
  tile.column_stride = 1;
  tile.column_period = columns;
  return tile;
}

// A copy of this shape, of which a size of 1 stands for one that the view repeats.
void* copy(View const& view, Shape const& shape, int slot, Owned& copies) {
  AtenTensorHandle const made = empty(shape, view.dtype, view);
  copies.take(made);
  AtenTensorHandle source = view.handle;
  int64_t sizes[kMaxRank];
  bool repeats = false;
  for (int64_t i = 0; i < view.rank; ++i) {
    sizes[i] = std::min(view.sizes[i], shape.sizes[i + shape.rank - view.rank]);
    repeats = repeats || sizes[i] < view.sizes[i];
  }
  if (repeats) {
    check(aoti_torch_as_strided(view.handle, sizes, view.strides, &source), "as_strided");
    copies.take(source);
  }
  check(aoti_torch_copy_(made, source, 0), "copy_");  // broadcasts
  count_copy(slot);
  return data_of(made);
}

Shape shape_of(View const& view) {
  Shape shape;
  for (int64_t i = 0; i < view.rank; ++i) shape.append(view.sizes[i]);
  return shape;
}

// Two dimensions for TMA, of a view's rows and its last dimension, one of which is contiguous in memory.  The
// first `first` dimensions are those of the batches.
CfTensor matrix(View const& view, int64_t first, int64_t batch_count, CfMajor major, int64_t bytes, int slot,
                Owned& copies) {
  int64_t const last = view.rank - 1;
  Levels const rows(view.sizes + first, view.strides + first, last - first);
  Level const columns{view.sizes[last], view.strides[last]};
  bool const k_major = major == CF_K_MAJOR;
  Level const near = k_major ? columns : rows.level[0], far = k_major ? rows.level[0] : columns;
  Batches const batches(first, view.sizes, view.strides, batch_count);

  bool const usable = rows.fit(1) && (near.size == 1 || near.stride == 1) &&
                      (far.size == 1 || (far.stride >= near.size && aligned(far.stride * bytes))) &&
                      batches.are_matrices(bytes) && aligned(view.data);
  if (usable) {
    int64_t const stride = far.size == 1 ? padded(near.size, bytes) : far.stride;
    CfTensor tile = plain_tile(view.data, stride, rows.level[0].size, columns.size);
    set_batches(tile, batches);
    return tile;
  }

  Shape shape = shape_of(view);
  int64_t row_count = 1;
  for (int64_t i = first; i < last; ++i) row_count *= view.sizes[i];
  int64_t const stride = padded(k_major ? columns.size : row_count, bytes);
  shape.strides[last] = k_major ? 1 : stride;
  int64_t next = k_major ? stride : 1;
  for (int64_t i = last - 1; i >= first; --i) {
    shape.strides[i] = next;
    next *= view.sizes[i];
  }
  next = stride * (k_major ? row_count : columns.size);
  int64_t strides[2] = {};  // of the batches
  for (int64_t i = first - 1; i >= 0; --i) {
    if (view.strides[i] == 0) shape.sizes[i] = 1;
    shape.strides[i] = next;
    if (shape.sizes[i] > 1) strides[i] = next;
    next *= shape.sizes[i];
  }
  CfTensor tile = plain_tile(copy(view, shape, slot, copies), stride, row_count, columns.size);
  set_batches(tile, Batches(first, view.sizes, strides, batch_count));
  return tile;
}

// A tile that is read without TMA: any alignment, rows in two levels, of which either may be repeated.
CfTensor broadcast_tile(Program const& program, Extent const& extent, View const& a, Slot const& slot,
                        View const& view, Owned& copies) {
  Shape shape;  // of the view, expanded
  int64_t first = 0;
  if (program.batched && view.rank == 4) {
    first = 2;
    for (int64_t size : {view.sizes[0], view.sizes[1], extent.m, slot.n}) shape.append(size);
  } else {
    for (int64_t i = 0; i + 1 < a.rank; ++i) shape.append(a.sizes[i]);
    shape.append(slot.n);
    if (!broadcasts(view, shape.sizes, shape.rank))
      shape = shape_of(view);  // flattened, or shared by batches
    if (program.batched && shape.rank == 3) first = 1;
  }
  for (int64_t i = 0; i < shape.rank; ++i) {
    int64_t const own = i - (shape.rank - view.rank);
    shape.strides[i] = own >= 0 && view.sizes[own] == shape.sizes[i] ? view.strides[own] : 0;
  }
  int64_t const last = shape.rank - 1;
  auto const walkable = [&](Shape const& s) {
    return Levels(s.sizes + first, s.strides + first, last - first).fit() &&
           (slot.n == 1 || s.strides[last] == 1);
  };
  void* data = view.data;
  if (!walkable(shape)) {
    Shape part = shape, whole = shape;  // first try to copy no row twice
    for (int64_t i = 0; i < last; ++i)
      if (shape.strides[i] == 0) part.sizes[i] = 1;
    part.make_contiguous();
    for (int64_t i = 0; i <= last; ++i)
      shape.strides[i] = part.sizes[i] == shape.sizes[i] ? part.strides[i] : 0;
    if (!walkable(shape)) {
      whole.make_contiguous();
      shape = part = whole;
    }
    data = copy(view, part, kSlotOperand, copies);
  }
  CfTensor tile = plain_tile(data, 0, extent.m, slot.n);
  set_batches(tile, Batches(first, shape.sizes, shape.strides, extent.batches));
  set_rows(tile, Levels(shape.sizes + first, shape.strides + first, last - first));
  return tile;
}

CfTensor row_vector(Program const& program, Extent const& extent, View const& view) {
  int64_t const last = view.rank - 1;
  CfTensor vector{view.data};
  if (view.sizes[last] > 1) vector.stride = view.strides[last];
  int64_t const first = program.batched ? (view.rank == 4 ? 2 : std::min<int64_t>(last, 1)) : 0;
  set_batches(vector, Batches(first, view.sizes, view.strides, extent.batches));
  return vector;
}

CfTensor column_vector(Program const& program, Extent const& extent, View const& view, Owned& copies) {
  CfTensor vector{view.data};
  int64_t first = 0;
  if (program.batched) {
    // (M,), (M, 1), (batch, M), (batch, M, 1) or (outer, inner, M, 1)
    bool const per_batch = view.rank >= 3 || (view.rank == 2 && view.sizes[1] == extent.m);
    first = view.rank == 4 ? 2 : per_batch ? 1 : 0;
    if (view.sizes[first] > 1) vector.stride = view.strides[first];
  } else {
    Levels const rows(view.sizes, view.strides, view.rank);
    vector.stride = rows.level[0].stride;
    if (!rows.fit(1)) {
      Shape shape = shape_of(view);
      shape.make_contiguous();
      vector = {copy(view, shape, kSlotOperand, copies), 1};
    }
  }
  set_batches(vector, Batches(first, view.sizes, view.strides, extent.batches));
  return vector;
}

[[noreturn]] void fail_strides(int index, Shape const& shape, std::string const& allowed) {
  fail("ArgumentError", "out[" + std::to_string(index) + "] is of strides " +
                            tuple_text(shape.strides, shape.rank) + "; allowed: " + allowed);
}

}  // namespace

CfTensor factor_a(Program const& program, Extent const& extent, Slot const& slot, View const& a,
                  Owned& copies) {
  int64_t const bytes = element_bytes(slot.dtype);
  return matrix(a, program.batched ? 1 : 0, extent.batches, slot.major, bytes, kSlotA, copies);
}

CfTensor factor_b(Extent const& extent, Slot const& slot, View const& b, Owned& copies) {
  return matrix(b, b.rank - 2, extent.batches, slot.major, element_bytes(slot.dtype), kSlotB, copies);
}

CfTensor operand(Program const& program, Extent const& extent, View const& a, Slot const& slot,
                 View const& view, Owned& copies) {
  if (slot.space == CF_ROW) return row_vector(program, extent, view);
  if (slot.space == CF_COLUMN) return column_vector(program, extent, view, copies);
  if (!slot.whole_rows) return broadcast_tile(program, extent, a, slot, view, copies);
  int64_t const first = program.batched ? view.rank - 2 : 0;
  return matrix(view, first, extent.batches, CF_K_MAJOR, element_bytes(slot.dtype), kSlotOperand, copies);
}

CfTensor output(Program const& program, Extent const& extent, int index, Shape const& shape, void* data) {
  Slot const& slot = program.outputs[size_t(index)];
  CfTensor result{data};
  result.batch_period = extent.batches;
  if (program.batched && extent.batches > 1) result.batch_stride = shape.strides[0];
  if (slot.space == CF_SCALAR) return result;
  if (slot.space == CF_ROW) {
    result.stride = shape.strides[shape.rank - 1];
    return result;
  }

  // The leading dimensions are rows; of a head-split tile the head comes before the last of them.
  bool const has_columns = slot.space != CF_COLUMN;
  int64_t sizes[kMaxRank + 1], strides[kMaxRank + 1];
  int64_t const leading = shape.rank - (has_columns ? 1 : 0), head = slot.heads > 0 ? shape.rank - 3 : -1;
  int64_t count = 0;
  for (int64_t i = program.batched ? 1 : 0; i < leading; ++i) {
    if (i == head) continue;
    sizes[count] = shape.sizes[i];
    strides[count++] = shape.strides[i];
  }
  Levels const rows(sizes, strides, count);
  set_rows(result, rows);

  count = 0;
  for (int64_t i : {head, has_columns ? shape.rank - 1 : -1}) {
    if (i < 0) continue;
    sizes[count] = shape.sizes[i];
    strides[count++] = shape.strides[i];
  }
  Levels const columns(sizes, strides, count);
  set_columns(result, columns);

  if (slot.space == CF_TILE && !slot.whole_rows) {
    if (!rows.fit()) fail_strides(index, shape, "rows that at most two strides walk");
    return result;
  }
  if (!rows.fit(1)) fail_strides(index, shape, "rows that one stride walks");
  char const* const unmarked = ", as this output is not marked as strided (FusedSpec.strided marks it)";
  if (has_columns && result.column_stride != 1)
    fail_strides(index, shape, std::string("contiguous columns") + (slot.space == CF_TILE ? unmarked : ""));
  if (slot.space == CF_TILE) {
    if (rows.count == 0) result.stride = slot.n;  // one row
    int64_t const bytes = element_bytes(slot.dtype), run = std::min(kAlignment, 8 * bytes);
    if (reinterpret_cast<uintptr_t>(data) % uintptr_t(run) != 0 || result.batch_stride * bytes % run != 0 ||
        result.stride * bytes % run != 0)
      fail_strides(index, shape,
                   "rows that start at multiples of " + std::to_string(run) + " bytes" + unmarked);
  }
  return result;
}

}  // namespace comfuse::binding
