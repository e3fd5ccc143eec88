// How the row blocks' partial results of a column become one.  Compiles for the host, where a test runs the
// arrivals in any order.
//
// Up to kMostTops row blocks are merged at once, by the CTA that finishes last.  More are merged segment by
// segment first, by whoever completes a segment, so that the last merge stays short.
//
// A segment's row blocks lie so far apart that the CTAs compute them one after the other: what completes it
// is a tile of its last row block, whichever CTA is the slowest.  Were they neighbours, a CTA that falls
// behind would complete one with each of its tiles, and that work would keep it behind.  A segment is small,
// so that its merge takes about as long as a tile.
#pragma once

#include "comfuse/host_device.hpp"

namespace comfuse::sm90 {

struct ColumnTree {
  static constexpr int kMostTops = 256, kSegment = 4;  // row blocks
  static constexpr int kCtas = 128;  // that compute tiles at the same time, more or less

  int leaves;    // row blocks
  int distance;  // between a segment's row blocks
  int segments;  // 0: the row blocks are the tops
  // `tiles`: of a row block.
  CF_HD ColumnTree(int row_blocks, int tiles)
      : leaves(row_blocks),
        distance(tiles < kCtas ? kCtas / tiles : 1),
        segments(row_blocks > kMostTops
                     ? segment_of(row_blocks - row_blocks % group()) + least(row_blocks % group(), distance)
                     : 0) {}

  // Nodes: the leaves, then the segments.
  CF_HD int nodes() const { return leaves + segments; }
  CF_HD int node_of(int segment) const { return leaves + segment; }
  CF_HD int segment_of(int leaf) const { return leaf / group() * distance + leaf % distance; }
  CF_HD int first_leaf(int segment) const { return segment / distance * group() + segment % distance; }
  CF_HD int leaves_of(int segment) const {
    return least(kSegment, (leaves - first_leaf(segment) + distance - 1) / distance);
  }
  // What the last merge is of.
  CF_HD int tops() const { return segments > 0 ? segments : leaves; }
  CF_HD int first_top() const { return segments > 0 ? leaves : 0; }
  // Rows of the tops from first to end, in a matrix of m, where a leaf has this many.
  CF_HD int rows(int first, int end, int of_leaf, int m) const {
    int const last = segments > 0 ? segment_of(leaves - 1) : leaves - 1;
    int const missing = first <= last && last < end ? leaves * of_leaf - m : 0;
    return (leaves_before(end) - leaves_before(first)) * of_leaf - missing;
  }
  // Leaves of the tops before this one.
  CF_HD int leaves_before(int top) const {
    if (segments == 0) return top;
    int const first = top / distance * group(), beside = top % distance;
    if (first >= leaves) return leaves;
    int const of_group = least(group(), leaves - first);
    return first + of_group / distance * beside + least(of_group % distance, beside);
  }

  // Counters of arrivals: one for each segment, one for the tops.
  CF_HD int counters() const { return segments + 1; }
  CF_HD int top_counter() const { return segments; }

 private:
  CF_HD static int least(int a, int b) { return a < b ? a : b; }
  // Leaves of neighbouring segments that begin within one distance.
  CF_HD int group() const { return kSegment * distance; }
};

}  // namespace comfuse::sm90
