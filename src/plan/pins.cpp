#include <algorithm>
#include <map>

#include "base/error.h"
#include "plan/plan.h"

namespace spillway {
namespace {

// The index of `value` among what pins of `name` may say.
size_t parse_value(const std::string& pin, const std::string& name, const std::string& value) {
  const std::vector<std::string>& values = pin_values(name);
  const auto found = std::find(values.begin(), values.end(), value);
  if (found == values.end())
    bad_input("place.{}: unknown place \"{}\"; did you mean \"{}\"?", pin, value,
              nearest(value, values));
  return static_cast<size_t>(found - values.begin());
}

std::string list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& n : names) text += (text.empty() ? "" : ", ") + n;
  return text;
}

constexpr const char* kUpdate = "update";

struct PinnedUpdate {
  UpdatePosition position;
  std::string pin;
};

std::map<int32_t, PinnedUpdate> pinned_updates(const PlanInput& input, int32_t layers) {
  std::map<int32_t, PinnedUpdate> result;
  for (const auto& [pin, value] : input.pins) {
    const auto [name, of] = parse_place_key(pin, layers);
    if (name != kUpdate) continue;
    const auto position = static_cast<UpdatePosition>(parse_value(pin, name, value));
    for (const int32_t layer : of) {
      const auto [before, fresh] = result.try_emplace(layer, PinnedUpdate{position, pin});
      if (!fresh && before->second.position != position)
        bad_input("place.{} and place.{} contradict each other about the same layer's update",
                  before->second.pin, pin);
    }
  }
  return result;
}

}  // namespace

ScheduleChoice schedule_of_pins(const PlanInput& input, ScheduleChoice choice) {
  const int32_t layers = input.train->get({}).graph.layers;
  for (const auto& [layer, update] : pinned_updates(input, layers)) {
    choice.update.resize(static_cast<size_t>(layers) + 2, UpdatePosition::end);
    choice.update[static_cast<size_t>(layer)] = update.position;
  }
  if (choice.updates_on_host()) {  // its states are there: not where they are pinned to the device
    const Placement pins = placement_of_pins(input);
    for (int32_t layer = 0; layer < static_cast<int32_t>(choice.update.size()); ++layer)
      for (const char* name : {"moments", "master"})
        if (const auto pin = pins.where.find({name, layer});
            pin != pins.where.end() && pin->second != Where::host && choice.updates_on_host(layer))
          choice.update[static_cast<size_t>(layer)] =
              choice.rotates(layer) ? UpdatePosition::rotated : UpdatePosition::end;
  }
  if (std::all_of(choice.update.begin(), choice.update.end(),
                  [](UpdatePosition p) { return p == UpdatePosition::end; }))
    choice.update.clear();
  return choice;
}

std::map<int32_t, UpdatePosition> updates_of_pins(const PlanInput& input) {
  std::map<int32_t, UpdatePosition> result;
  for (const auto& [layer, update] : pinned_updates(input, input.train->get({}).graph.layers))
    result[layer] = update.position;
  return result;
}

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
    const auto [name, layers] = parse_place_key(pin, train.graph.layers);
    if (name == kUpdate) continue;
    const auto where = static_cast<Where>(parse_value(pin, name, value));
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
  for (const auto& [layer, update] : pinned_updates(input, train.graph.layers)) {
    if (!ScheduleChoice::on_host(update.position)) continue;
    for (const char* name : {"moments", "master"}) {
      const auto unit = units.find({name, layer});
      if (unit == units.end()) continue;
      const auto [before, fresh] = pinned_by.try_emplace(unit->first, update.pin);
      if (!fresh && placement.where.at(unit->first) != Where::host)
        bad_input(
            "place.{} and place.{} contradict each other: what is updated on the host has its "
            "\"{}\" there",
            before->second, update.pin, name);
      placement.where[unit->first] = Where::host;
    }
  }
  return placement;
}

}  // namespace spillway
