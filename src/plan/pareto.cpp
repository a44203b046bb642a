#include "plan/pareto.h"

#include <algorithm>

namespace spillway {
namespace {

PlanPoint point_of(const Plan& plan) {
  PlanPoint point{plan.device.peak, plan.host.peak, plan.step_seconds,
                  plan.exposed_transfer_seconds()};
  for (const auto& [key, where] : plan.placement.where) {
    point.streamed += where == Where::host ? 1 : 0;
    point.recomputed += where == Where::recompute ? 1 : 0;
  }
  return point;
}

PlanPoint plain(const PlanInput& input, const PlanReport& report, bool recompute) {
  ScheduleChoice schedule;
  schedule.zero = report.plan.schedule.zero;
  Placement placement = placement_of_pins(input);
  if (recompute)
    for (const PlaceUnit& unit : place_units(input.train->get(schedule)))
      if (unit.recomputable) placement.where.try_emplace(unit.key, Where::recompute);
  return point_of(evaluate_placement(input, placement, schedule));
}

}  // namespace

ParetoTable pareto_table(const PlanInput& input, const PlanReport& report, int sizes) {
  ParetoTable table;
  table.all_resident = plain(input, report, false);
  table.full_recompute = plain(input, report, true);
  std::vector<PlanPoint> found;
  if (report.fits) found.push_back(point_of(report.plan));
  for (const PlanPoint& point : {table.all_resident, table.full_recompute})
    if (point.host_bytes <= input.budgets.host) found.push_back(point);
  const int64_t least = report.device_minimum_bytes;
  const int64_t most = std::max(least, report.all_resident_device_bytes);
  for (int k = 0; k < sizes; ++k) {
    ParetoRow row;
    row.device_budget = least + (most - least) / (sizes - 1) * k;
    if (k == sizes - 1) row.device_budget = most;
    PlanInput of_size = input;
    of_size.budgets.device = row.device_budget;
    const PlanReport planned = make_plan(of_size);
    if (planned.fits) found.push_back(point_of(planned.plan));
    row.bound_seconds = planned.bound_seconds;
    table.rows.push_back(row);
  }
  for (ParetoRow& row : table.rows)
    for (const PlanPoint& point : found) {
      if (point.device_bytes > row.device_budget) continue;
      if (row.fits && point.step_seconds >= row.plan.step_seconds) continue;
      row.plan = point;
      row.fits = true;
    }
  return table;
}

}  // namespace spillway
