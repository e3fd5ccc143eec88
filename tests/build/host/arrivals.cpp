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

Result merged(Workspace const& workspace, int first, int count) {
  Result result;
  for (int node = first; node < first + count; ++node)
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
        unpublished = merged(workspace, tree.first_leaf(segment), tree.leaves_of(segment));
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
  for (int leaf = 0; leaf < tree.leaves; ++leaf)
    require(result[leaf] == number * kLeaves + leaf, "not in order, or left by another launch", tree.leaves);
  for (uint32_t counter : workspace.counters) require(counter == 0, "a counter is not reset", tree.leaves);
}

}  // namespace

int main() {
  std::mt19937 random(0);
  for (int leaves : {1, 2, 3, 15, 16, 17, 128, 255, 256, 257, 271, 272, 273, 1000, 4097}) {
    ColumnTree const tree(leaves);
    int covered = 0;
    for (int segment = 0; segment < tree.segments; ++segment) {
      require(tree.segment_of(tree.first_leaf(segment)) == segment, "segments overlap", leaves);
      covered += tree.leaves_of(segment);
    }
    require(tree.segments == 0 || covered == leaves, "segments leave gaps", leaves);
    Workspace workspace(tree);
    for (int64_t number = 0; number < (leaves < 300 ? 200 : 20); ++number)
      launch(tree, workspace, number, random);
  }
  return 0;
}
