#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"
#include "parallel/build.h"
#include "parallel/gather.h"

namespace spillway {

ParallelSpec parallel_spec(const Config& config, int rank, int ranks, int ranks_on_node) {
  const TrainConfig& train = config.train;
  const int64_t pass = train.micro_batch * ranks;
  if (train.micro_batch < 1 || train.batch < 1 || train.batch % pass != 0)
    bad_input(
        "train.batch: {} sequences cannot be split into passes of train.micro_batch {} on {} "
        "rank(s); the next larger batch that can is {}",
        train.batch, train.micro_batch, ranks,
        pass < 1 ? 1 : round_up(std::max<int64_t>(train.batch, 1), pass));
  ParallelSpec spec;
  spec.ranks = ranks;
  spec.rank = rank;
  spec.zero_is_free = config.parallel.zero == kAutoZero && ranks > 1;
  spec.zero = config.parallel.zero == kAutoZero ? ParallelConfig{}.zero : config.parallel.zero;
  spec.micro_batches = static_cast<int32_t>(train.batch / pass);
  const int64_t every =
      config.parallel.reduce_every > 0 ? config.parallel.reduce_every : spec.micro_batches;
  if (spec.micro_batches % every != 0)
    bad_input(
        "parallel.reduce_every: {} does not divide the {} micro-batches of a step on one rank; "
        "use {} or \"all\"",
        every, spec.micro_batches, std::gcd(every, int64_t{spec.micro_batches}));
  spec.reduce_every = static_cast<int32_t>(every);
  const int64_t tree = config.parallel.tree > 0 ? config.parallel.tree : ranks_on_node;
  spec.tree = static_cast<int32_t>(std::clamp<int64_t>(tree, 1, ranks));
  return spec;
}

Schedule build_forward_schedule(const std::string& name, const Graph& forward,
                                const ParallelSpec& spec, const ScheduleChoice& choice) {
  Schedule schedule;
  schedule.name = name;
  schedule.graph = forward;
  schedule.spec = spec;
  schedule.choice.zero = choice.zero;
  Stage stage;
  stage.name = name;
  const std::vector<Unit> units = make_units(schedule.graph, spec.ranks);
  shard_parameters(schedule, units);
  // Not ahead: the ring is the train program's too, which may have one slot.
  std::map<NodeId, std::vector<NodeId>> gathers = add_gathers(schedule.graph, units, spec, 0);
  for (NodeId id = 0; id < static_cast<NodeId>(forward.nodes.size()); ++id) {
    for (const NodeId gather : gathers[id]) stage.visits.push_back({gather});
    stage.visits.push_back({id});
  }
  schedule.stages.push_back(std::move(stage));
  return schedule;
}

}  // namespace spillway
