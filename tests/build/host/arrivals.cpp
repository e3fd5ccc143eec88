// Column partials arrive in any order, launch after launch, on a workspace that is zeroed once; the first
// mistake is on stderr.
//
// What collector.hpp does for one column block, with its column tree and the semantics of its atomic.  A
// collector's writes stay its own until it arrives somewhere, which is all that the device promises; a
// result is the list of the leaves that went into it, so that order counts.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "comfuse/sm90/column_tree.hpp"

using comfuse::sm90::ColumnTree;

namespace {

using Result = std::vector<int64_t>;  // launch * kLeaves + leaf, in the order of merging
constexpr int64_t kLeaves = 1 << 20;

void require(bool condition, char const* what, int leaves) {
  if (condition) return;
  std::fprintf(stderr, "%d row blocks: %s\n", leaves, what);
  std::exit(1);
}

struct Workspace {
  std::vector<Result> nodes;
  std::vector<uint32_t> counters;
  explicit Workspace(ColumnTree const& tree) : nodes(tree.nodes()), counters(tree.counters(), 0) {}

  // atom.inc: wraps to zero behind `count` arrivals.
  bool arrives_last(int counter, uint32_t count) {
    uint32_t const before = counters[counter];
    counters[counter] = before >= count - 1 ? 0 : before + 1;
    return before == count - 1;
  }
};

Result merged(Workspace const& workspace, int first, int count, int distance = 1) {
  Result result;
  for (int node = first; node < first + count * distance; node += distance)
    result.insert(result.end(), workspace.nodes[node].begin(), workspace.nodes[node].end());
  return result;
}

// One row block's collector, a step at a time: a step ends where another's may come between.
struct Arrival {
  enum { kSegment, kMerge, kTop, kDone } next;
  int leaf, node;
  Result unpublished;  // of `node`

  Arrival(ColumnTree const& tree, int leaf, int64_t launch)
      : next(tree.segments > 0 ? kSegment : kTop),
        leaf(leaf),
        node(leaf),
        unpublished{launch * kLeaves + leaf} {}

  // True for the last of all.
  bool step(ColumnTree const& tree, Workspace& workspace) {
    int const segment = tree.segment_of(leaf);
    switch (next) {
      case kSegment:
        workspace.nodes[node] = unpublished;
        next = workspace.arrives_last(segment, tree.leaves_of(segment)) ? kMerge : kDone;
        return false;
      case kMerge:
        node = tree.node_of(segment);
        unpublished = merged(workspace, tree.first_leaf(segment), tree.leaves_of(segment), tree.distance);
        next = kTop;
        return false;
      case kTop:
        workspace.nodes[node] = unpublished;
        next = kDone;
        return workspace.arrives_last(tree.top_counter(), tree.tops());
      default: return false;
    }
  }
};

void launch(ColumnTree const& tree, Workspace& workspace, int64_t number, std::mt19937& random) {
  // At most `resident` are on their way at once, as on a GPU; which of them moves is chance.
  size_t const resident = 1 + random() % 300;
  std::vector<Arrival> running;
  int started = 0, finished = 0;
  Result result;
  while (started < tree.leaves || !running.empty()) {
    while (started < tree.leaves && running.size() < resident) running.emplace_back(tree, started++, number);
    size_t const chosen = random() % running.size();
    if (running[chosen].step(tree, workspace)) {
      ++finished;
      result = merged(workspace, tree.first_top(), tree.tops());
    }
    if (running[chosen].next == Arrival::kDone) {
      std::swap(running[chosen], running.back());
      running.pop_back();
    }
  }
  require(finished == 1, "not one collector was the last", tree.leaves);
  require(int(result.size()) == tree.leaves, "a row block is missing or counted twice", tree.leaves);
  // Segment by segment, whoever was the last.
  int at = 0;
  for (int top = 0; top < tree.tops(); ++top)
    for (int leaf = tree.segments > 0 ? tree.first_leaf(top) : top, n = tree.leaves_before(top);
         n < tree.leaves_before(top + 1); ++n, leaf += tree.distance)
      require(result[at++] == number * kLeaves + leaf, "not in order, or left by another launch",
              tree.leaves);
  for (uint32_t counter : workspace.counters) require(counter == 0, "a counter is not reset", tree.leaves);
}

}  // namespace

int main() {
  std::mt19937 random(0);
  for (int tiles : {1, 2, 4, 5, 100, 200})
    for (int leaves : {1, 2, 15, 16, 128, 255, 256, 257, 271, 384, 385, 511, 512, 513, 1000, 4097}) {
      ColumnTree const tree(leaves, tiles);
      std::vector<int> segments(leaves, -1);
      for (int segment = 0; segment < tree.segments; ++segment) {
        require(tree.leaves_before(segment + 1) - tree.leaves_before(segment) == tree.leaves_of(segment),
                "leaves are miscounted", leaves);
        for (int n = 0; n < tree.leaves_of(segment); ++n) {
          int const leaf = tree.first_leaf(segment) + n * tree.distance;
          require(leaf < leaves && segments[leaf] == -1, "segments overlap", leaves);
          require(tree.segment_of(leaf) == segment, "a leaf is in another segment", leaves);
          segments[leaf] = segment;
        }
      }
      require(tree.leaves_before(tree.tops()) == leaves, "segments leave gaps", leaves);
      int rows = 0;  // of 128 a row block, the last one of 5
      for (int top = 0; top < tree.tops(); ++top) {
        int const last = tree.segments == 0 ? leaves - 1 : segments[leaves - 1];
        int const expected =
            tree.leaves_before(top + 1) * 128 - tree.leaves_before(top) * 128 - (top == last ? 123 : 0);
        require(tree.rows(top, top + 1, 128, leaves * 128 - 123) == expected, "rows are miscounted", leaves);
        rows += expected;
      }
      require(rows == leaves * 128 - 123, "rows are missing", leaves);
      Workspace workspace(tree);
      for (int64_t number = 0; number < (leaves < 300 ? 30 : 5); ++number)
        launch(tree, workspace, number, random);
    }
  return 0;
}
