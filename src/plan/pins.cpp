#include <algorithm>
#include <map>

#include "base/error.h"
#include "plan/plan.h"

namespace spillway {
namespace {

Where parse_where(const std::string& pin, const std::string& value) {
  if (value == "device") return Where::device;
  if (value == "host") return Where::host;
  if (value == "recompute") return Where::recompute;
  bad_input("place.{}: unknown place \"{}\"; did you mean \"{}\"?", pin, value,
            nearest(value, {"device", "host", "recompute"}));
}

std::string list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& n : names) text += (text.empty() ? "" : ", ") + n;
  return text;
}

}  // namespace

Placement placement_of_pins(const PlanInput& input) {
  const Schedule& train = input.train->get({});
  std::map<PlaceKey, PlaceUnit> units;
  std::vector<std::string> names;
  for (const PlaceUnit& unit : place_units(train)) {
    units[unit.key] = unit;
    if (std::find(names.begin(), names.end(), unit.key.first) == names.end())
      names.push_back(unit.key.first);
  }
  Placement placement;
  std::map<PlaceKey, std::string> pinned_by;  // default: resident
  for (const auto& [pin, value] : input.pins) {
    const Where where = parse_where(pin, value);
    const auto [name, layers] = parse_place_key(pin, train.graph.layers);
    if (std::find(names.begin(), names.end(), name) == names.end())
      bad_input("place.{}: this model has nothing of the name \"{}\"; did you mean \"{}\"? ({})",
                pin, name, nearest(name, names), list(names));
    bool found = false;
    for (const int32_t layer : layers) {
      const auto unit = units.find({name, layer});
      if (unit == units.end()) continue;
      found = true;
      if (where == Where::recompute && !unit->second.recomputable)
        bad_input("place.{}: \"{}\" cannot be recomputed; expected \"device\" or \"host\"", pin,
                  name);
      const auto [before, fresh] = pinned_by.try_emplace(unit->first, pin);
      if (!fresh && placement.where.at(unit->first) != where)
        bad_input("place.{} and place.{} contradict each other about the same layer of \"{}\"",
                  before->second, pin, name);
      placement.where[unit->first] = where;
    }
    if (!found) bad_input("place.{}: none of these layers has a \"{}\"", pin, name);
  }
  return placement;
}

}  // namespace spillway
