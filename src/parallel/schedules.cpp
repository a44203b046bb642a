// What schedules there are of one training graph.
#include "parallel/build.h"

namespace spillway {
namespace {

template <class Key, class Build>
const Schedule& built_once(std::map<Key, Schedule>& built, const Key& choice, const Build& build) {
  auto it = built.find(choice);
  if (it == built.end()) it = built.emplace(choice, build()).first;
  return it->second;
}

}  // namespace

std::vector<int32_t> group_choices(const ParallelSpec& spec) {
  std::vector<int32_t> result;
  for (int32_t group = 1; group <= spec.micro_batches; ++group)
    if (spec.micro_batches % group == 0 &&
        (group % spec.reduce_every == 0 || spec.reduce_every % group == 0))
      result.push_back(group);
  return result;
}

const Schedule& TrainSchedules::get(const ScheduleChoice& choice) const {
  return built_once(built_, choice,
                    [&] { return build_train_schedule(forward_, optimizer_, spec_, choice); });
}

const Schedule& TrainSchedules::check(const ScheduleChoice& choice) const {
  return built_once(built_checks_, choice,
                    [&] { return build_check_schedule(forward_, optimizer_, spec_, choice); });
}

TrainSchedules TrainSchedules::with_zero(int32_t stage) const {
  ParallelSpec spec = spec_;
  spec.zero = stage;
  spec.zero_is_free = false;
  return {forward_, optimizer_, spec};
}

const Schedule& ForwardSchedules::get(const ScheduleChoice& choice) const {
  return built_once(built_, choice.zero,
                    [&] { return build_forward_schedule(name_, forward_, spec_, choice); });
}

ForwardSchedules ForwardSchedules::with_zero(int32_t stage) const {
  ParallelSpec spec = spec_;
  spec.zero = stage;
  return {name_, forward_, spec};
}

std::vector<std::string> digested_tensors(const Schedule& check) {
  std::vector<std::string> names;
  for (const Node& node : check.graph.nodes)
    if (node.op == OpKind::digest && node.kind == NodeKind::op)
      names.push_back(check.graph.tensors[node.in[0].tensor].name);
  return names;
}

Schedule build_flush_schedule(const Schedule& train) {
  Schedule flush = train;
  flush.name = "flush";
  Stage stage;
  stage.name = "flush";
  for (const Visit& visit : train.stages.front().visits)
    if (train.graph.nodes[visit.node].pass == Pass::update) stage.visits.push_back(visit);
  stage.visits.push_back(train.stages.back().visits.back());  // scalars → pending scalars
  flush.stages = {std::move(stage)};
  return flush;
}

const Schedule* TrainSchedules::flush(const ScheduleChoice& choice) const {
  if (!choice.rotates()) return nullptr;
  return &built_once(built_flushes_, choice, [&] { return build_flush_schedule(get(choice)); });
}

}  // namespace spillway
