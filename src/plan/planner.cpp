#include "base/error.h"
#include "plan/plan.h"

namespace spillway {

PlanReport make_plan(const PlanInput& input) {
  PlanReport report;
  report.plan = evaluate_placement(input, placement_of_pins(input), 1);
  report.fits = report.plan.device.peak <= input.budgets.device &&
                report.plan.host.peak <= input.budgets.host;
  return report;
}

std::string shortfall_message(const PlanReport& report, const Budgets& budgets) {
  return fmt::format("does not fit: {} of device memory needed, {} there", report.plan.device.peak,
                     budgets.device);
}

}  // namespace spillway
