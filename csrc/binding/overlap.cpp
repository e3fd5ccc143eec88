#include "overlap.h"

#include <algorithm>
#include <cstdint>

namespace comfuse::binding {
namespace {

int64_t element_size(View const& view) { return int64_t(aoti_torch_dtype_element_size(view.dtype)); }

bool is_empty(View const& view) {
  return std::find(view.sizes, view.sizes + view.rank, 0) != view.sizes + view.rank;
}

// Bytes from the first element to the end of the last, over the dimensions whose stride is less than `period`
// bytes; 0 if one of the others is no multiple of it.
int64_t span(View const& view, int64_t period) {
  int64_t const size = element_size(view);
  int64_t bytes = size;
  for (int64_t i = 0; i < view.rank; ++i) {
    int64_t const stride = view.strides[i] * size;
    if (view.sizes[i] == 1) continue;
    if (stride < period)
      bytes += (view.sizes[i] - 1) * stride;
    else if (stride % period != 0)
      return 0;
  }
  return bytes;
}

bool apart_in_each(int64_t period, View const& x, View const& y) {
  if (period == 0) return false;
  int64_t const span_x = span(x, period), span_y = span(y, period);
  if (span_x == 0 || span_y == 0) return false;
  auto const from = reinterpret_cast<uintptr_t>(x.data), to = reinterpret_cast<uintptr_t>(y.data);
  // How far y begins behind x, within a period.
  int64_t const ahead = int64_t(to >= from ? (to - from) % uintptr_t(period)
                                           : uintptr_t(period) - 1 - (from - to - 1) % uintptr_t(period));
  return span_x <= ahead && ahead <= period - span_y;
}

}  // namespace

bool may_overlap_itself(View const& view) {
  int64_t order[kMaxRank + 1], count = 0;
  for (int64_t i = 0; i < view.rank; ++i)
    if (view.sizes[i] > 1) order[count++] = i;
  std::sort(order, order + count, [&](int64_t i, int64_t j) { return view.strides[i] < view.strides[j]; });
  int64_t reach = 0;  // of the dimensions so far
  for (int64_t i = 0; i < count; ++i) {
    if (view.strides[order[i]] <= reach) return !is_empty(view);
    reach += (view.sizes[order[i]] - 1) * view.strides[order[i]];
  }
  return false;
}

bool may_overlap(View const& x, View const& y) {
  if (is_empty(x) || is_empty(y)) return false;
  if (apart_in_each(INT64_MAX, x, y)) return false;
  for (View const* view : {&x, &y})
    for (int64_t i = 0; i < view->rank; ++i)
      if (view->sizes[i] > 1 && apart_in_each(view->strides[i] * element_size(*view), x, y)) return false;
  return true;
}

}  // namespace comfuse::binding
