// How the row blocks' partial results of a column become one.  Compiles for the host, where a test runs the
// arrivals in any order.
//
// Up to kMostTops row blocks are merged at once, by the CTA that finishes last.  More are merged segment by
// segment first, by whoever completes a segment, so that the last merge stays short for any M.
#pragma once

#include "comfuse/host_device.hpp"

namespace comfuse::sm90 {

struct ColumnTree {
  static constexpr int kMostTops = 256, kSegment = 16;  // row blocks

  int leaves;    // row blocks
  int segments;  // 0: the row blocks are the tops
  CF_HD explicit ColumnTree(int row_blocks)
      : leaves(row_blocks), segments(row_blocks > kMostTops ? (row_blocks + kSegment - 1) / kSegment : 0) {}

  // Nodes: the leaves, then the segments.
  CF_HD int nodes() const { return leaves + segments; }
  CF_HD int node_of(int segment) const { return leaves + segment; }
  CF_HD static int segment_of(int leaf) { return leaf / kSegment; }
  CF_HD static int first_leaf(int segment) { return segment * kSegment; }
  CF_HD int leaves_of(int segment) const {
    int const rest = leaves - first_leaf(segment);
    return rest < kSegment ? rest : kSegment;
  }
  // What the last merge is of.
  CF_HD int tops() const { return segments > 0 ? segments : leaves; }
  CF_HD int first_top() const { return segments > 0 ? leaves : 0; }
  CF_HD int leaves_of_top() const { return segments > 0 ? kSegment : 1; }

  // Counters of arrivals: one for each segment, one for the tops.
  CF_HD int counters() const { return segments + 1; }
  CF_HD int top_counter() const { return segments; }
};

}  // namespace comfuse::sm90
