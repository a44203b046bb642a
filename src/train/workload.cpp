#include "train/workload.h"

#include "graph/op_seconds.h"
#include "model/model.h"
#include "parallel/build.h"

namespace spillway {

Workload::Workload(const Config& c, const Topology& t) : Workload(c, t, load_profile(c.hardware)) {}

Workload::Workload(const Config& c, const Topology& t, const HardwareProfile& profile)
    : config(c), topology(t) {
  check_op_rates(profile);
  spec = parallel_spec(config, t.rank, t.ranks, t.ranks_on_node);
  config.parallel.tree = spec.tree;
  subject = plan_subject(config, t.ranks, profile);
  const int64_t context = config.model.context;
  tokens_per_step = config.train.batch * context;
  flops_per_token = model_flops_per_token(config.model);

  int64_t chunk = config.train.loss_chunk;
  if (chunk == 0)
    chunk = default_loss_chunk(config.model.padded_vocab(), config.train.micro_batch * context);
  GraphShape shape{config.train.micro_batch, context, spec.micro_batches, tokens_per_step};
  const Graph forward =
      build_model(config.model, config.train.precision, chunk, shape, GraphMode::train);
  train = TrainSchedules(forward, config.optimizer, spec);
  shape.micro_batches = 1;
  ParallelSpec one_micro_batch = spec;
  one_micro_batch.micro_batches = 1;
  evaluate = ForwardSchedules(
      "evaluate", build_model(config.model, config.train.precision, chunk, shape, GraphMode::train),
      one_micro_batch);

  input.train = &train;
  input.checks = config.train.check_every > 0 && config.train.check_every <= config.train.steps;
  const bool evaluates = config.train.eval_every > 0;
  input.evaluate = evaluates ? &evaluate : nullptr;
  input.profile = profile;
  input.ranks_on_node = t.ranks_on_node;
  input.budgets = resolve_budgets(config.memory, input.profile, t.ranks_on_node);
  input.offload = config.offload;
  input.recompute = config.recompute;
  input.pins = config.place;
  input.rules = workspace_rules(input.profile, t.threads);
  input.staging_bytes = kStagingBytes;
  input.saves = true;
  // Without saves on the way nothing runs beside one.
  input.snapshots = config.checkpoint.every > 0 && config.checkpoint.copy == Mode::automatic;
  input.bf16 = config.train.precision == Precision::bf16;
  input.flops_per_step = flops_per_step() / t.ranks;
}

double Workload::peak_flops() const {
  return input.bf16 ? input.profile.peak_bf16 : input.profile.peak_f32;
}

}  // namespace spillway
