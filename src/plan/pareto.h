// The fastest plan at each size of device memory.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace spillway {

// What a table needs of a plan.
struct PlanPoint {
  int64_t device_bytes = 0, host_bytes = 0;  // of the arenas
  double step_seconds = 0, exposed_transfer_seconds = 0;
  int streamed = 0, recomputed = 0;  // decisions: a name in a layer
};

struct ParetoRow {
  int64_t device_budget = 0;  // bytes
  bool fits = false;          // else: not with this host memory
  PlanPoint plan;
  double bound_seconds = 0;  // 0: none
};

struct ParetoTable {
  std::vector<ParetoRow> rows;  // ascending budgets, from the minimum to all resident
  PlanPoint all_resident;       // whether or not these two fit the budgets
  PlanPoint full_recompute;     // every activation that can be, and nothing else; pins stay
};

// Plans for `sizes` (≥ 2) even budgets of device memory. Of what fits a budget, a row has the
// fastest plan found at any, `report`'s among them: more memory is never slower.
ParetoTable pareto_table(const PlanInput& input, const PlanReport& report, int sizes);

}  // namespace spillway
