// Who runs what when on one rank: the training graph spread over data-parallel ranks, as stages
// that run one after the other. Compute and communication only; copies are lowering's business.
#pragma once

#include <algorithm>
#include <compare>
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
  // over ranks; before, only where a group of micro-batches holds whole reductions), 3 and
  // parameters. Of every layer that ScheduleChoice::zero says nothing of.
  int32_t zero = 0;
  bool zero_is_free = false;  // ScheduleChoice::zero is the planner's to choose
  int32_t micro_batches = 1;  // a step on one rank
  int32_t reduce_every = 1;   // micro-batches summed on a rank before ranks are summed; divides
  int32_t tree = 1;           // inner width of the reduction tree
  // Exchanges go in two levels, inside nodes of `tree` consecutive ranks and across the nodes
  // between ranks of the same place in theirs, where that divides the ranks; else all ranks talk to
  // all. It moves other bytes, and adds the same numbers in the same order.
  bool two_levels() const { return tree > 1 && tree < ranks && ranks % tree == 0; }
  // Place of a rank's part among the parts of all ranks: ranks that meet across nodes stand side by
  // side, so that both levels move contiguous ranges.
  int32_t place_of(int32_t of_rank) const {
    return two_levels() ? of_rank % tree * (ranks / tree) + of_rank / tree : of_rank;
  }
};

// When and where a layer's parameters are updated: at the end of the step, or rotated, just before
// the layer's forward pass in the next step, so that what it needs has work to hide behind; on the
// device, or on the host's processors, where its masters and moments then live: gradients go there,
// parameters come back, and no state crosses the link.
enum class UpdatePosition : uint8_t { end, rotated, host, host_rotated };

// What of a schedule is the planner's to choose. None of it changes a bit.
struct ScheduleChoice {
  // So that communication overlaps compute, at the price of a slot more of each ring:
  // 1: the sum over ranks of a layer is issued after the backward pass of the layer below it; 0: at
  // once.
  int32_t reduce_delay = 1;
  // 1: sharded parameters are gathered one layer early; 0: right before their layer.
  int32_t gather_ahead = 1;
  // Micro-batches that visit a layer before the next layer's turn. Parameters travel once a group,
  // and a group's activations are alive at once.
  int32_t group = 1;
  std::vector<UpdatePosition> update;  // by layer; empty: all at the end of the step
  UpdatePosition position(int32_t layer) const {
    return layer < static_cast<int32_t>(update.size()) ? update[layer] : UpdatePosition::end;
  }
  static bool rotated(UpdatePosition p) {
    return p == UpdatePosition::rotated || p == UpdatePosition::host_rotated;
  }
  static bool on_host(UpdatePosition p) {
    return p == UpdatePosition::host || p == UpdatePosition::host_rotated;
  }
  bool rotates(int32_t layer) const { return rotated(position(layer)); }
  bool rotates() const { return std::any_of(update.begin(), update.end(), rotated); }
  bool updates_on_host(int32_t layer) const { return on_host(position(layer)); }
  bool updates_on_host() const { return std::any_of(update.begin(), update.end(), on_host); }
  std::vector<int32_t> zero;  // stage by layer, as ParallelSpec::zero; empty: that
  int32_t zero_of(int32_t layer, const ParallelSpec& spec) const {
    return zero.empty() ? spec.zero : zero[static_cast<size_t>(layer)];
  }
  friend auto operator<=>(const ScheduleChoice&, const ScheduleChoice&) = default;
};

// One execution of a node for one micro-batch of an iteration's group.
struct Visit {
  NodeId node = kNone;
  int32_t micro = 0;        // 0 … group - 1
  bool accumulate = false;  // outputs marked `accumulate` add to what is there, else they overwrite
};

// `trip` iterations of the same visits. Iteration i is of micro-batches micro_base + i * group and
// the group - 1 that follow it.
struct Stage {
  std::string name;  // "first", "steady", "last", "update"
  int32_t trip = 1;
  int32_t micro_base = 0;
  std::vector<Visit> visits;  // in issue order
};

struct Schedule {
  std::string name;  // "train", "check", "flush", "evaluate", "prefill", "decode"
  // Name of the schedule whose step and iteration buffers this one uses for tensors of the same
  // name, between that one's runs; "": its own.
  std::string borrows;
  Graph graph;
  std::vector<Stage> stages;
  ParallelSpec spec;
  ScheduleChoice choice;

  // What of a layer this rank holds only its share of.
  bool shards_state(int32_t layer) const { return shards(layer, 1); }
  bool shards_gradients(int32_t layer) const { return shards(layer, 2); }
  bool shards_parameters(int32_t layer) const { return shards(layer, 3); }
  bool shards(int32_t layer, int32_t from_stage) const {
    return spec.ranks > 1 && choice.zero_of(layer, spec) >= from_stage;
  }
};

}  // namespace spillway
