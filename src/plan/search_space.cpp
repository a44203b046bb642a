#include <algorithm>

#include "plan/search.h"

namespace spillway {
namespace {

UnitKind kind_of(const PlaceUnit& unit) {
  if (unit.activation) return UnitKind::activation;
  if (unit.key.first == "parameters") return UnitKind::parameters;
  return unit.key.first == "gradients" ? UnitKind::gradients : UnitKind::state;
}

}  // namespace

SearchSpace search_space(const PlanInput& input, const ScheduleChoice& choice) {
  SearchSpace space;
  space.choice = schedule_of_pins(input, choice);
  space.input = &input;
  space.base = placement_of_pins(input);
  const Schedule& train = input.train->get(space.choice);
  space.several_ranks = train.spec.ranks > 1;
  for (const Stage& stage : train.stages) space.nodes += static_cast<int64_t>(stage.visits.size());
  std::map<std::pair<std::string, int>, Group> groups;
  for (const PlaceUnit& unit : place_units(train)) {
    if (!space.base.where.try_emplace(unit.key, Where::device).second) continue;  // pinned
    const int32_t layer = unit.key.second;
    const int region = layer == 0 ? 0 : layer <= train.graph.layers ? 1 : 2;
    Group& group = groups[{unit.key.first, region}];
    group.name = unit.key.first;
    group.kind = kind_of(unit);
    group.units.push_back(unit);
    group.bytes += unit.bytes;
  }
  for (auto& [key, group] : groups) {
    group.choices = {Where::device};
    if (input.offload == Mode::automatic) group.choices.push_back(Where::host);
    const bool recomputable = std::all_of(group.units.begin(), group.units.end(),
                                          [](const PlaceUnit& unit) { return unit.recomputable; });
    if (input.recompute == Mode::automatic && recomputable)
      group.choices.push_back(Where::recompute);
    if (group.choices.size() > 1) space.groups.push_back(std::move(group));
  }
  return space;
}

}  // namespace spillway
