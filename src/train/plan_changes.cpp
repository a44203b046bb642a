#include "train/plan_changes.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace spillway {
namespace {

using Keys = std::vector<std::pair<std::string, std::string>>;

// The pins but for number `left_out`.
std::string pins_text(const Config& config, size_t left_out) {
  nlohmann::ordered_json pins = nlohmann::ordered_json::object();
  for (size_t i = 0; i < config.place.size(); ++i)
    if (i != left_out) pins[config.place[i].first] = config.place[i].second;
  return pins.dump();
}

// What might help and changes no bit.
std::vector<Keys> exact_changes(const Workload& w, const PlanReport& report) {
  const Config& config = w.config;
  const Budgets& budgets = w.input.budgets;
  std::vector<Keys> changes;
  Keys memory;
  if (budgets.device < report.device_minimum_bytes)
    memory.emplace_back("memory.device", size_at_least(report.device_minimum_bytes));
  if (budgets.host < report.host_of_minimum_bytes)
    memory.emplace_back("memory.host", size_at_least(report.host_of_minimum_bytes));
  if (!memory.empty()) changes.push_back(memory);
  if (budgets.device < report.all_resident_device_bytes)
    changes.push_back({{"memory.device", size_at_least(report.all_resident_device_bytes)}});
  if (config.recompute == Mode::off) changes.push_back({{"recompute", "auto"}});
  if (config.offload == Mode::off) changes.push_back({{"offload", "auto"}});
  if (config.recompute == Mode::off && config.offload == Mode::off)
    changes.push_back({{"offload", "auto"}, {"recompute", "auto"}});
  for (size_t pin = 0; pin < config.place.size(); ++pin)
    changes.push_back({{"place", pins_text(config, pin)}});
  if (config.place.size() > 1) changes.push_back({{"place", "{}"}});
  if (w.topology.ranks > 1 && config.parallel.zero != kAutoZero)
    for (int stage = config.parallel.zero + 1; stage <= 3; ++stage)
      changes.push_back({{"parallel.zero", std::to_string(stage)}});
  return changes;
}

}  // namespace

std::vector<Change> changes_that_fit(const Workload& w, const PlanReport& report, size_t most) {
  std::vector<Change> fitting;
  const auto consider = [&](const Keys& keys, bool numerics) {
    std::vector<std::string> overrides;
    for (const auto& [key, value] : keys) overrides.push_back(key + "=" + value);
    try {
      const Workload changed(parse_config(to_json_text(w.config), "config", overrides), w.topology);
      const PlanReport planned = make_plan(changed.input);
      if (!planned.fits) return false;
      fitting.push_back({keys, numerics, planned.plan.device.peak, planned.plan.host.peak,
                         planned.plan.step_seconds});
      return true;
    } catch (const Error& e) {
      if (e.code() != ExitCode::bad_input) throw;
      return false;  // this config does not allow it
    }
  };
  for (const Keys& keys : exact_changes(w, report)) consider(keys, false);
  std::stable_sort(fitting.begin(), fitting.end(), [](const Change& a, const Change& b) {
    return a.step_seconds < b.step_seconds;
  });
  if (fitting.size() > most) fitting.resize(most);
  for (int64_t size = w.config.train.micro_batch - 1; size >= 1 && fitting.size() < most; --size)
    if (w.config.train.micro_batch % size == 0 &&
        consider({{"train.micro_batch", std::to_string(size)}}, true))
      break;
  return fitting;
}

}  // namespace spillway
