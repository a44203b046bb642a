#include "parallel/build.h"

namespace spillway {
namespace {

template <class Build>
const Schedule& built_once(std::map<ScheduleChoice, Schedule>& built, const ScheduleChoice& choice,
                           const Build& build) {
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

std::vector<std::string> digested_tensors(const Schedule& check) {
  std::vector<std::string> names;
  for (const Node& node : check.graph.nodes)
    if (node.op == OpKind::digest && node.kind == NodeKind::op)
      names.push_back(check.graph.tensors[node.in[0].tensor].name);
  return names;
}

}  // namespace spillway
