// What `train plan` says of a plan, for people and as JSON (README, "Reading a plan").
#pragma once

#include <array>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "plan/marginals.h"
#include "plan/pareto.h"
#include "plan/plan.h"
#include "train/plan_changes.h"
#include "train/workload.h"

namespace spillway {

// Everything that was asked for.
struct PlanAnswer {
  PlanReport report;
  std::optional<std::vector<Marginal>> marginals;
  std::optional<ParetoTable> pareto;
  std::vector<Change> changes;  // that make it fit, where it does not
};

// Layers of each tensor name by what becomes of them.
struct NameCounts {
  int resident = 0, streamed = 0, recomputed = 0;
  int sharded = 0;  // of the first two: this rank has only its share
};
std::map<std::string, NameCounts> counts_by_name(const Plan& plan, const Schedule& train);

// Lines for people, each with its end.
std::string plan_text(const PlanAnswer& answer, const Workload& workload);
// Keys: README, "Reading a plan".
nlohmann::ordered_json plan_json(const PlanAnswer& answer, const Workload& workload);

// Shared by both.
int rotated_layers(const ScheduleChoice& schedule);
int layers_updated_on_host(const ScheduleChoice& schedule);
std::array<int, 4> layers_of_stage(const Plan& plan, const Workload& workload);  // by ZeRO stage

}  // namespace spillway
