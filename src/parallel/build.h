// Training graph → schedule: optimizer state and update nodes, sums over ranks, stages.
#pragma once

#include "config/config.h"
#include "parallel/schedule.h"

namespace spillway {

// Numerics of the run for `rank` of `ranks`; `ranks_on_node` decides `tree` if it is auto.
// Throws bad_input where batch, micro_batch, ranks or reduce_every do not divide.
ParallelSpec parallel_spec(const Config& config, int rank, int ranks, int ranks_on_node);

// forward graph (GraphMode::train) → the train schedule of one rank.
// `reduce_delay` 1: the sum over ranks of a layer is issued after the backward pass of the layer
// below it, and parameters are gathered one layer early, so that communication overlaps compute;
// 0 issues both at once (one slot of each ring suffices).
Schedule build_train_schedule(const Graph& forward, const OptimizerConfig& optimizer,
                              const ParallelSpec& spec, int reduce_delay);

// A forward-only schedule ("evaluate", "prefill", "decode") of one stage.
Schedule build_forward_schedule(const std::string& name, const Graph& forward,
                                const ParallelSpec& spec);

}  // namespace spillway
