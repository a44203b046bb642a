#include "program/sequence.h"
#include "program/stages.h"

namespace spillway {

std::vector<PlaceUnit> place_units(const Schedule& train) {
  const Placement all_resident;
  const Sequencer sequencer(train, all_resident);
  std::map<PlaceKey, PlaceUnit> units;
  for (size_t i = 0; i < train.graph.tensors.size(); ++i) {
    const Tensor& t = train.graph.tensors[i];
    const bool activation = t.role == Role::activation;
    if (activation ? !sequencer.saved(static_cast<TensorId>(i))
                   : t.role != Role::param && t.role != Role::master && t.role != Role::moment &&
                         t.role != Role::grad)
      continue;
    PlaceUnit& unit = units[{t.place, t.layer}];
    if (unit.bytes == 0) unit.recomputable = activation;
    unit.key = {t.place, t.layer};
    unit.bytes += t.bytes() * (activation ? train.choice.group : 1);
    unit.activation = activation;
    unit.state = t.role == Role::master || t.role == Role::moment;
    unit.recomputable = unit.recomputable && activation && !t.anchor;
  }
  std::vector<PlaceUnit> result;
  for (auto& [key, unit] : units) result.push_back(std::move(unit));
  return result;
}

}  // namespace spillway
