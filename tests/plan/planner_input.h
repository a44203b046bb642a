// Planner input from config text, as a run of one rank of several would make it.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "model/model.h"
#include "parallel/build.h"
#include "plan/plan.h"

namespace spillway {

struct PlannerInput {
  Config config;
  TrainSchedules train;
  ForwardSchedules evaluate;
  PlanInput input;

  PlannerInput(const std::string& text, const std::vector<std::string>& overrides, int ranks = 1)
      : config(parse_config(text, "test", overrides)) {
    const ParallelSpec spec = parallel_spec(config, 0, ranks, ranks);
    const int64_t tokens = config.train.batch * config.model.context;
    int64_t chunk = config.train.loss_chunk;
    if (chunk == 0)
      chunk = default_loss_chunk(config.model.padded_vocab(),
                                 config.train.micro_batch * config.model.context);
    GraphShape shape{config.train.micro_batch, config.model.context, spec.micro_batches, tokens};
    const Graph forward =
        build_model(config.model, config.train.precision, chunk, shape, GraphMode::train);
    train = TrainSchedules(forward, config.optimizer, spec);
    shape.micro_batches = 1;
    ParallelSpec one = spec;
    one.micro_batches = 1;
    evaluate = ForwardSchedules(
        "evaluate",
        build_model(config.model, config.train.precision, chunk, shape, GraphMode::train), one);
    input.train = &train;
    input.evaluate = config.train.eval_every > 0 ? &evaluate : nullptr;
    input.profile = load_profile(config.hardware);
    input.ranks_on_node = ranks;
    input.budgets = {int64_t{1} << 60, int64_t{1} << 60};
    input.offload = config.offload;
    input.recompute = config.recompute;
    input.pins = config.place;
    input.rules = workspace_rules(input.profile, 2);
    input.staging_bytes = 4 << 20;
    input.bf16 = config.train.precision == Precision::bf16;
    input.flops_per_step = model_flops_per_token(config.model) * static_cast<double>(tokens);
  }
  PlannerInput(const PlannerInput&) = delete;
  PlannerInput& operator=(const PlannerInput&) = delete;

  PlanReport plan(int64_t device, int64_t host = int64_t{1} << 60) {
    input.budgets = {device, host};
    return make_plan(input);
  }
};

}  // namespace spillway
