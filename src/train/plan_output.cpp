#include "train/plan_output.h"

#include <algorithm>

namespace spillway {

std::map<std::string, NameCounts> counts_by_name(const Plan& plan, const Schedule& train) {
  std::map<std::string, NameCounts> counts;
  for (const auto& [key, where] : plan.placement.where) {
    const auto& [name, layer] = key;
    NameCounts& n = counts[name];
    ++(where == Where::device ? n.resident : where == Where::host ? n.streamed : n.recomputed);
    const bool state = name == "moments" || name == "master";
    if ((state && train.shards_state(layer)) ||
        (name == "gradients" && train.shards_gradients(layer)) ||
        (name == "parameters" && train.shards_parameters(layer)))
      ++n.sharded;
  }
  return counts;
}

int rotated_layers(const ScheduleChoice& schedule) {
  return static_cast<int>(
      std::count_if(schedule.update.begin(), schedule.update.end(), ScheduleChoice::rotated));
}

int layers_updated_on_host(const ScheduleChoice& schedule) {
  return static_cast<int>(
      std::count_if(schedule.update.begin(), schedule.update.end(), ScheduleChoice::on_host));
}

std::array<int, 4> layers_of_stage(const Plan& plan, const Workload& w) {
  std::array<int, 4> layers{};
  for (int32_t layer = 0; layer < w.config.model.layers + 2; ++layer)
    ++layers[static_cast<size_t>(plan.schedule.zero_of(layer, w.spec))];
  return layers;
}

}  // namespace spillway
