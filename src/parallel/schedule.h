// Who runs what when on one rank: the training graph spread over data-parallel ranks, as stages
// that run one after the other. Compute and communication only; copies are lowering's business.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "graph/graph.h"

namespace spillway {

// Numerics of the sums over ranks and micro-batches.
struct ParallelSpec {
  int32_t ranks = 1, rank = 0;
  // What is sharded over ranks: 0 nothing, 1 optimizer state, 2 and gradients (once they are summed
  // over ranks; before, only where every micro-batch is reduced), 3 and parameters.
  int32_t zero = 0;
  int32_t micro_batches = 1;  // a step on one rank
  int32_t reduce_every = 1;   // micro-batches summed on a rank before ranks are summed; divides
  int32_t tree = 1;           // inner width of the reduction tree
};

// `trip` iterations of the same nodes. Iteration i is micro-batch micro_base + i. Operands marked
// `accumulate` add to what is there if `accumulate` is set, else they overwrite.
struct Stage {
  std::string name;  // "first", "steady", "last", "update"
  int32_t trip = 1;
  int32_t micro_base = 0;
  bool accumulate = false;          // gradient accumulators already hold earlier micro-batches
  bool accumulate_reduced = false;  // … and so do the sums over ranks (reduce_every < all)
  std::vector<NodeId> nodes;        // in issue order
};

struct Schedule {
  std::string name;  // "train", "evaluate", "prefill", "decode"
  Graph graph;
  std::vector<Stage> stages;
  ParallelSpec spec;
};

}  // namespace spillway
