// Plan files:
//   { "format": "spillway plan 1", "numerics": HEX, "profile": NAME, "reduce_delay": 0 | 1,
//     "group": N, "rotated": LAYERS or "", "slots": { PLACE: N, … }, "place": { "PLACE@LAYERS":
//     "device" | "host" | "recompute", … } }
// with LAYERS as in the config's `place` keys. Every unit of the model is named exactly once.
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "plan/plan.h"

namespace spillway {
namespace {

constexpr const char* kFormat = "spillway plan 1";
constexpr const char* kStaging = "comm_staging";  // has slots, but is nowhere else to go
constexpr const char* kWhere[] = {"device", "host", "recompute"};

std::string layers_text(const std::vector<int32_t>& layers, int32_t blocks) {
  std::string text;
  for (size_t i = 0; i < layers.size();) {
    size_t end = i + 1;
    const bool block = layers[i] >= 1 && layers[i] <= blocks;
    while (block && end < layers.size() && layers[end] == layers[end - 1] + 1 &&
           layers[end] <= blocks)
      ++end;
    if (!text.empty()) text += ',';
    if (layers[i] == 0)
      text += "embed";
    else if (!block)
      text += "head";
    else
      text += std::to_string(layers[i] - 1) +
              (end - i > 1 ? "-" + std::to_string(layers[end - 1] - 1) : std::string());
    i = end;
  }
  return text;
}

// A whole number from `low` to `high`, or bad_input naming `key`.
int integer(const nlohmann::json& value, const std::string& origin, const std::string& key, int low,
            int high) {
  if (value.is_number_integer() && value >= low && value <= high) return value.get<int>();
  bad_input("{}: {} is {}, expected {} to {}", origin, key, value.dump(), low, high);
}

// The units that a key of `place` names; errors say which file it stands in.
std::pair<std::string, std::vector<int32_t>> layers_of(const std::string& key, int32_t layers,
                                                       const std::string& origin) {
  try {
    return parse_place_key(key, layers);
  } catch (const Error& e) {
    bad_input("{}: {}", origin, e.what());
  }
}

}  // namespace

std::string placement_to_json(const Plan& plan, const std::string& numerics_hash,
                              const std::string& profile_name) {
  int32_t blocks = 0;  // the head is the one layer above the blocks
  for (const auto& [key, where] : plan.placement.where) blocks = std::max(blocks, key.second - 1);
  std::map<std::pair<std::string, Where>, std::vector<int32_t>> groups;
  for (const auto& [key, where] : plan.placement.where)
    groups[{key.first, where}].push_back(key.second);
  nlohmann::ordered_json j;
  j["format"] = kFormat;
  j["numerics"] = numerics_hash;
  j["profile"] = profile_name;
  j["reduce_delay"] = plan.schedule.reduce_delay;
  j["group"] = plan.schedule.group;
  std::vector<int32_t> rotated;
  for (int32_t layer = 0; layer <= blocks + 1; ++layer)
    if (plan.schedule.rotates(layer)) rotated.push_back(layer);
  j["rotated"] = layers_text(rotated, blocks);
  j["slots"] = nlohmann::ordered_json::object();
  for (const auto& [place, slots] : plan.placement.slots) j["slots"][place] = slots;
  j["place"] = nlohmann::ordered_json::object();
  for (const auto& [group, layers] : groups)
    j["place"][group.first + "@" + layers_text(layers, blocks)] =
        kWhere[static_cast<int>(group.second)];
  return j.dump(2);
}

Placement placement_from_json(const std::string& text, const std::string& origin,
                              const TrainSchedules& schedules, const std::string& numerics_hash,
                              ScheduleChoice* schedule) {
  nlohmann::json j;
  try {
    j = nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& e) {
    bad_input("{}: not a JSON at byte {}; expected a plan written by train plan --out", origin,
              e.byte);
  }
  if (!j.is_object() || j.value("format", nlohmann::json()) != kFormat)
    bad_input("{}: not a plan file; expected \"format\": \"{}\"", origin, kFormat);
  try {
    const std::string numerics = j.at("numerics").get<std::string>();
    if (numerics != numerics_hash)
      bad_input("{}: the plan is for another config: its numerics are {}, this run's are {}",
                origin, numerics, numerics_hash);
    schedule->reduce_delay = integer(j.at("reduce_delay"), origin, "reduce_delay", 0, 1);
    const std::vector<int32_t> groups = group_choices(schedules.spec());
    schedule->group = integer(j.at("group"), origin, "group", 1, groups.back());
    if (std::find(groups.begin(), groups.end(), schedule->group) == groups.end())
      bad_input("{}: group is {}, which does not go with this config; expected one of {}", origin,
                schedule->group, fmt::join(groups, ", "));
    const int32_t blocks = schedules.get({}).graph.layers;
    schedule->update.clear();
    if (const auto text = j.at("rotated").get<std::string>(); !text.empty()) {
      schedule->update.assign(blocks + 2, UpdatePosition::end);
      for (const int32_t layer : layers_of("rotated@" + text, blocks, origin).second)
        schedule->update[layer] = UpdatePosition::rotated;
    }
    const Schedule& train = schedules.get(*schedule);
    Placement placement;
    std::map<PlaceKey, PlaceUnit> units;
    std::vector<std::string> names;
    for (const PlaceUnit& unit : place_units(train)) {
      units[unit.key] = unit;
      names.push_back(unit.key.first);
    }
    for (const char* key : {"slots", "place"})
      if (!j.at(key).is_object()) bad_input("{}: {} is not a table", origin, key);
    for (const auto& [place, slots] : j.at("slots").items()) {
      if (place != kStaging && std::find(names.begin(), names.end(), place) == names.end())
        bad_input("{}: slots.{}: this model has no such tensor; did you mean \"{}\"?", origin,
                  place, nearest(place, names));
      placement.slots[place] = integer(slots, origin, "slots." + place, 1, 64);
    }
    for (const auto& [key, value] : j.at("place").items()) {
      const auto [name, layers] = layers_of(key, train.graph.layers, origin);
      const std::string word = value.is_string() ? value.get<std::string>() : value.dump();
      int where = 0;
      while (where < 3 && word != kWhere[where]) ++where;
      if (where == 3)
        bad_input("{}: place.{} is \"{}\", expected device, host or recompute", origin, key, word);
      for (const int32_t layer : layers) {
        const auto unit = units.find({name, layer});
        if (unit == units.end())
          bad_input("{}: place.{}: this model has no such tensor; did you mean \"{}\"?", origin,
                    key, nearest(name, names));
        if (where == 2 && !unit->second.recomputable)
          bad_input("{}: place.{}: cannot be recomputed", origin, key);
        if (!placement.where.try_emplace(unit->first, static_cast<Where>(where)).second)
          bad_input("{}: place.{} names a layer twice", origin, key);
      }
    }
    for (const auto& [key, unit] : units)
      if (!placement.where.contains(key))
        bad_input("{}: no decision for \"{}\" of layer {}", origin, key.first, key.second);
    return placement;
  } catch (const nlohmann::json::exception& e) {
    bad_input("{}: {}", origin, e.what());
  }
}

}  // namespace spillway
