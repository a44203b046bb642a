// Plan files:
//   { "format": "spillway plan 2",
//     "numerics": { "hash": HEX, "values": { KEY: VALUE, … } },
//     "profile": { "name": NAME, "hash": HEX, "values": { KEY: VALUE, … } },
//     "reduce_delay": 0 | 1, "gather_ahead": 0 | 1, "group": N, "rotated": LAYERS or "",
//     "update_on_host": LAYERS, "zero": { "STAGE": LAYERS, … }, "slots": { PLACE: N, … }, "place":
//     { "PLACE@LAYERS": "device" | "host" | "recompute", … }, "quality": { "device_bytes": N,
//     "host_bytes": N, "threads": N, "bound_seconds": X,
//       "certificates": [ { "group": N, "blocks": N, "bound_seconds": X | null, "multipliers": {
//       ROW: Y, … } } ] },
//     "report": { … } }
// with LAYERS as in the config's `place` keys. Every unit of the model is named exactly once, and
// in "zero" every layer; that stands there only where parallel.zero is "auto".
// "update_on_host" may be missing: no layer. "quality" may be missing: a plan that claims nothing.
// null: no plan of this group fits.
// "report", on one line, is for scripts/report.py; who reads plans passes over it.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "plan/plan.h"

namespace spillway {
namespace {

constexpr const char* kFormat = "spillway plan 2";
constexpr const char* kStaging = "comm_staging";  // has slots, but is nowhere else to go

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

nlohmann::ordered_json subject_json(const std::string& hash, const KeyValues& values) {
  nlohmann::ordered_json j;
  j["hash"] = hash;
  j["values"] = nlohmann::ordered_json::object();
  for (const auto& [key, value] : values)
    j["values"][key] = nlohmann::ordered_json::parse(value, nullptr, false);
  return j;
}

// Refuses a plan for something else: `what` is "numerics" or "profile".
void check_subject(const nlohmann::json& j, const std::string& origin, const std::string& what,
                   const std::string& hash, const KeyValues& values) {
  const auto found = j.at("hash").get<std::string>();
  const auto differs = [&](const std::string& key, const std::string& there,
                           const std::string& here) {
    bad_input(
        "{}: the plan is for {}: its {} are {}, this run's are {}; {} is {} there and {} here",
        origin, what == "numerics" ? "another config" : "another hardware profile",
        what == "numerics" ? "numerics" : "profile's values", found, hash, key, there, here);
  };
  const nlohmann::json& there = j.at("values");
  if (!there.is_object()) bad_input("{}: {}.values is not a table", origin, what);
  for (const auto& [key, value] : values) {
    const nlohmann::json here = nlohmann::json::parse(value, nullptr, false);
    const auto it = there.find(key);
    if (it == there.end()) differs(key, "not set", value);
    if (*it != here) differs(key, it->dump(), value);
  }
  for (const auto& [key, value] : there.items())
    if (std::none_of(values.begin(), values.end(), [&](const auto& v) { return v.first == key; }))
      differs(key, value.dump(), "not set");
  if (found != hash)
    bad_input("{}: {}.hash is {}, but its values are this run's, whose hash is {}; was it altered?",
              origin, what, found, hash);
}

double number(const nlohmann::json& value, const std::string& origin, const std::string& key) {
  if (value.is_number() && std::isfinite(value.get<double>())) return value.get<double>();
  bad_input("{}: {} is {}, expected a number", origin, key, value.dump());
}

int64_t size(const nlohmann::json& value, const std::string& origin, const std::string& key) {
  if (value.is_number_integer() && value >= 0) return value.get<int64_t>();
  bad_input("{}: {} is {}, expected a number of bytes", origin, key, value.dump());
}

nlohmann::ordered_json proof_json(const QualityProof& proof) {
  nlohmann::ordered_json j;
  j["device_bytes"] = proof.budgets.device;
  j["host_bytes"] = proof.budgets.host;
  j["threads"] = proof.threads;
  j["bound_seconds"] = proof.bound_seconds;
  j["certificates"] = nlohmann::ordered_json::array();
  for (const Certificate& c : proof.certificates) {
    nlohmann::ordered_json of_group;
    of_group["group"] = c.group;
    of_group["blocks"] = c.blocks;
    of_group["bound_seconds"] = std::isinf(c.bound_seconds)
                                    ? nlohmann::ordered_json(nullptr)
                                    : nlohmann::ordered_json(c.bound_seconds);
    of_group["multipliers"] = nlohmann::ordered_json::object();
    for (const auto& [row, value] : c.multipliers) of_group["multipliers"][row] = value;
    j["certificates"].push_back(std::move(of_group));
  }
  return j;
}

QualityProof read_proof(const nlohmann::json& j, const std::string& origin) {
  constexpr int kMost = 1 << 20;
  QualityProof proof;
  proof.budgets.device = size(j.at("device_bytes"), origin, "quality.device_bytes");
  proof.budgets.host = size(j.at("host_bytes"), origin, "quality.host_bytes");
  proof.threads = integer(j.at("threads"), origin, "quality.threads", 1, kMost);
  proof.bound_seconds = number(j.at("bound_seconds"), origin, "quality.bound_seconds");
  if (!j.at("certificates").is_array()) bad_input("{}: quality.certificates is not a list", origin);
  for (const nlohmann::json& one : j.at("certificates")) {
    const std::string where = fmt::format("quality.certificates[{}].", proof.certificates.size());
    Certificate c;
    c.group = integer(one.at("group"), origin, where + "group", 1, kMost);
    c.blocks = integer(one.at("blocks"), origin, where + "blocks", 1, kMost);
    c.bound_seconds = one.at("bound_seconds").is_null()
                          ? std::numeric_limits<double>::infinity()
                          : number(one.at("bound_seconds"), origin, where + "bound_seconds");
    if (!one.at("multipliers").is_object())
      bad_input("{}: {}multipliers is not a table", origin, where);
    for (const auto& [row, value] : one.at("multipliers").items())
      c.multipliers.emplace_back(row, number(value, origin, where + "multipliers." + row));
    proof.certificates.push_back(std::move(c));
  }
  return proof;
}

// The stage of each layer from "zero", empty where the run's config has one for all.
std::vector<int32_t> stages_of(const nlohmann::json& plan, const ParallelSpec& spec, int32_t blocks,
                               const std::string& origin) {
  if (!spec.zero_is_free) {
    if (plan.contains("zero") && spec.ranks > 1)
      bad_input(
          "{}: the plan has ZeRO stages by layer (\"zero\"), and parallel.zero is {}; set "
          "parallel.zero to \"auto\", or plan again",
          origin, spec.zero);
    return {};
  }
  if (!plan.contains("zero"))
    bad_input(
        "{}: the plan has no ZeRO stages by layer (\"zero\"), which parallel.zero \"auto\" takes "
        "from it; set parallel.zero to the plan's stage, or plan again",
        origin);
  std::vector<int32_t> stages(blocks + 2, -1);
  for (const auto& [text, layers] : plan.at("zero").items()) {
    if (text.size() != 1 || text[0] < '0' || text[0] > '3')
      bad_input("{}: zero.{}: no such stage, expected 0 to 3", origin, text);
    for (const int32_t layer :
         layers_of("zero@" + layers.get<std::string>(), blocks, origin).second)
      if (std::exchange(stages[layer], text[0] - '0') != -1)
        bad_input("{}: zero names a layer twice, again for stage {}", origin, text);
  }
  if (const auto left = std::find(stages.begin(), stages.end(), -1); left != stages.end())
    bad_input("{}: zero says nothing of layer {}", origin,
              layers_text({static_cast<int32_t>(left - stages.begin())}, blocks));
  return stages;
}

}  // namespace

PlanSubject plan_subject(const Config& config, int ranks, const HardwareProfile& profile) {
  PlanSubject subject;
  subject.numerics = hex(numerics_hash(config, ranks));
  subject.numerics_values = numerics_values(config, ranks);
  subject.profile_name = profile.name;
  subject.profile_values = profile_values(profile);
  Hasher hasher;
  for (const auto& [key, value] : subject.profile_values) {
    hasher.text(key);
    hasher.text(value);
  }
  subject.profile = hex(hasher.digest());
  return subject;
}

std::optional<QualityProof> quality_proof(const PlanReport& report, const PlanInput& input) {
  if (report.bound_seconds <= 0) return std::nullopt;
  return QualityProof{input.budgets, input.rules.threads, report.bound_seconds,
                      report.certificates};
}

std::string placement_to_json(const Plan& plan, const PlanSubject& subject,
                              const std::optional<QualityProof>& proof, const std::string& report) {
  int32_t blocks = 0;  // the head is the one layer above the blocks
  for (const auto& [key, where] : plan.placement.where) blocks = std::max(blocks, key.second - 1);
  std::map<std::pair<std::string, Where>, std::vector<int32_t>> groups;
  for (const auto& [key, where] : plan.placement.where)
    groups[{key.first, where}].push_back(key.second);
  nlohmann::ordered_json j;
  j["format"] = kFormat;
  j["numerics"] = subject_json(subject.numerics, subject.numerics_values);
  j["profile"]["name"] = subject.profile_name;
  j["profile"].update(subject_json(subject.profile, subject.profile_values));
  j["reduce_delay"] = plan.schedule.reduce_delay;
  j["gather_ahead"] = plan.schedule.gather_ahead;
  j["group"] = plan.schedule.group;
  std::vector<int32_t> rotated, on_host;
  for (int32_t layer = 0; layer <= blocks + 1; ++layer) {
    if (plan.schedule.rotates(layer)) rotated.push_back(layer);
    if (plan.schedule.updates_on_host(layer)) on_host.push_back(layer);
  }
  j["rotated"] = layers_text(rotated, blocks);
  if (!on_host.empty()) j["update_on_host"] = layers_text(on_host, blocks);
  if (!plan.schedule.zero.empty()) {
    std::map<int32_t, std::vector<int32_t>> of_stage;
    for (int32_t layer = 0; layer <= blocks + 1; ++layer)
      of_stage[plan.schedule.zero[layer]].push_back(layer);
    for (const auto& [stage, layers] : of_stage)
      j["zero"][std::to_string(stage)] = layers_text(layers, blocks);
  }
  j["slots"] = nlohmann::ordered_json::object();
  for (const auto& [place, slots] : plan.placement.slots) j["slots"][place] = slots;
  j["place"] = nlohmann::ordered_json::object();
  for (const auto& [group, layers] : groups)
    j["place"][group.first + "@" + layers_text(layers, blocks)] =
        pin_values(group.first)[static_cast<size_t>(group.second)];
  if (proof) j["quality"] = proof_json(*proof);
  std::string text = j.dump(2);
  if (report.empty()) return text;
  text.resize(text.rfind('\n'));  // before the last brace
  return text + ",\n  \"report\": " + report + "\n}";
}

LoadedPlan placement_from_json(const std::string& text, const std::string& origin,
                               const TrainSchedules& schedules, const PlanSubject& subject) {
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
    check_subject(j.at("numerics"), origin, "numerics", subject.numerics, subject.numerics_values);
    check_subject(j.at("profile"), origin, "profile", subject.profile, subject.profile_values);
    LoadedPlan plan;
    ScheduleChoice& schedule = plan.schedule;
    schedule.reduce_delay = integer(j.at("reduce_delay"), origin, "reduce_delay", 0, 1);
    schedule.gather_ahead = integer(j.at("gather_ahead"), origin, "gather_ahead", 0, 1);
    const std::vector<int32_t> groups = group_choices(schedules.spec());
    schedule.group = integer(j.at("group"), origin, "group", 1, groups.back());
    if (std::find(groups.begin(), groups.end(), schedule.group) == groups.end())
      bad_input("{}: group is {}, which does not go with this config; expected one of {}", origin,
                schedule.group, fmt::join(groups, ", "));
    const int32_t blocks = schedules.get({}).graph.layers;
    schedule.update.clear();
    const auto each_layer = [&](const std::string& key, const std::string& text, auto&& visit) {
      if (text.empty()) return;
      schedule.update.resize(blocks + 2, UpdatePosition::end);
      for (const int32_t layer : layers_of(key + "@" + text, blocks, origin).second)
        visit(schedule.update[layer]);
    };
    each_layer("rotated", j.at("rotated").get<std::string>(),
               [](UpdatePosition& position) { position = UpdatePosition::rotated; });
    each_layer("update_on_host", j.value("update_on_host", std::string()),
               [](UpdatePosition& position) {
                 position = ScheduleChoice::rotated(position) ? UpdatePosition::host_rotated
                                                              : UpdatePosition::host;
               });
    schedule.zero = stages_of(j, schedules.spec(), blocks, origin);
    const Schedule& train = schedules.get(schedule);
    Placement& placement = plan.placement;
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
      const std::vector<std::string>& words = pin_values(name);
      const auto found = std::find(words.begin(), words.end(), word);
      if (found == words.end())
        bad_input("{}: place.{} is \"{}\", expected {}", origin, key, word, fmt::join(words, ", "));
      const auto where = static_cast<Where>(found - words.begin());
      for (const int32_t layer : layers) {
        const auto unit = units.find({name, layer});
        if (unit == units.end())
          bad_input("{}: place.{}: this model has no such tensor; did you mean \"{}\"?", origin,
                    key, nearest(name, names));
        if (where != Where::host && unit->second.state && schedule.updates_on_host(layer))
          bad_input("{}: place.{} is \"{}\", but this layer is updated on the host", origin, key,
                    word);
        if (where == Where::recompute && !unit->second.recomputable)
          bad_input("{}: place.{}: cannot be recomputed", origin, key);
        if (!placement.where.try_emplace(unit->first, where).second)
          bad_input("{}: place.{} names a layer twice", origin, key);
      }
    }
    for (const auto& [key, unit] : units)
      if (!placement.where.contains(key))
        bad_input("{}: no decision for \"{}\" of layer {}", origin, key.first, key.second);
    if (j.contains("quality")) plan.proof = read_proof(j.at("quality"), origin);
    return plan;
  } catch (const nlohmann::json::exception& e) {
    bad_input("{}: {}", origin, e.what());
  }
}

}  // namespace spillway
