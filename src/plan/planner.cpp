#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/error.h"
#include "plan/plan.h"
#include "plan/search.h"

namespace spillway {
namespace {

bool fits(const Plan& plan, const Budgets& budgets) {
  return plan.device.peak <= budgets.device && plan.host.peak <= budgets.host;
}

bool offloads(const Placement& placement) {
  return std::any_of(placement.where.begin(), placement.where.end(),
                     [](const auto& unit) { return unit.second == Where::host; });
}

void note_no_offload(const Plan& plan, PlanReport& report) {
  if (offloads(plan.placement)) return;
  if (report.no_offload_device_bytes > 0 && plan.step_seconds >= report.no_offload_step_seconds)
    return;
  report.no_offload_device_bytes = plan.device.peak;
  report.no_offload_step_seconds = plan.step_seconds;
}

// Bytes that one step copies between the tiers.
int64_t bytes_moved(const Program& program) {
  int64_t bytes = 0;
  for (const Segment& segment : program.segments)
    for (InstrId i = segment.begin; i < segment.end; ++i)
      if (program.instrs[i].kind == InstrKind::copy)
        bytes += segment.trip * program.instrs[i].in[0].bytes();
  return bytes;
}

// Evaluations that a model can afford: many for a small one.
int family_size(const SearchSpace& space) {
  return static_cast<int>(std::clamp<int64_t>(250000 / std::max<int64_t>(1, space.nodes), 48, 160));
}

// A schedule other than batch-first with updates at the end gets this part of the evaluations, and
// only as many of them are tried as keep the whole within bounds.
constexpr int kOtherShare = 4;
constexpr int64_t kLargestOther = 12000;  // nodes

std::vector<ScheduleChoice> other_schedules(const PlanInput& input) {
  std::vector<ScheduleChoice> result;
  const int32_t layers = input.train->get({}).graph.layers + 2;
  const auto nodes = static_cast<int64_t>(input.train->get({}).stages.front().visits.size());
  const std::vector<int32_t> groups = group_choices(input.train->spec());
  for (const bool rotated : {true, false})
    for (const int32_t group : {groups.front(), groups.back()}) {
      ScheduleChoice choice;
      choice.group = group;
      if (rotated) choice.update.assign(layers, UpdatePosition::rotated);
      if (choice == ScheduleChoice{} || nodes * group > kLargestOther) continue;
      if (std::find(result.begin(), result.end(), choice) == result.end()) result.push_back(choice);
    }
  return result;
}

// The smallest size in hundredths of a mebibyte that is at least `bytes`, as a config spells it.
std::string size_at_least(int64_t bytes) {
  constexpr double kMiB = 1 << 20;
  for (double hundredths = std::ceil(static_cast<double>(bytes) * 100 / kMiB);; ++hundredths) {
    const std::string text = fmt::format("{:.2f}MiB", hundredths / 100);
    if (parse_bytes(text, "memory") >= bytes) return text;
  }
}

}  // namespace

PlanReport make_plan(const PlanInput& input) {
  const SearchSpace space = search_space(input);
  const auto evaluate = [&](const Candidate& c) {
    return evaluate_placement(input, c.placement, c.schedule);
  };
  PlanReport report;
  const Candidate minimum = least_device_memory(space);
  Plan least = evaluate(minimum);
  report.plan = evaluate({space.base, {}});
  report.all_resident_device_bytes = report.plan.device.peak;
  report.all_resident_step_seconds = report.plan.step_seconds;
  report.device_minimum_bytes = least.device.peak;
  report.host_of_minimum_bytes = least.host.peak;
  report.fits = fits(report.plan, input.budgets);
  if (report.fits) note_no_offload(report.plan, report);

  const auto rank = [](const Plan& p) {
    return std::tuple(p.step_seconds, bytes_moved(p.lowered.set.programs[0]), p.device.peak);
  };
  const auto consider_plan = [&](Plan plan) {
    if (!fits(plan, input.budgets)) return;
    note_no_offload(plan, report);
    if (report.fits && rank(plan) >= rank(report.plan)) return;
    report.plan = std::move(plan);
    report.fits = true;
  };
  const auto consider = [&](const Candidate& c) {
    Plan plan = lay_out(input, c.placement, c.schedule);
    if (!fits(plan, input.budgets)) return false;
    synchronise_and_time(input, plan);
    consider_plan(std::move(plan));
    return true;
  };
  // Where everything fits in any order of the work, nothing needs to move.
  const std::vector<ScheduleChoice> others = other_schedules(input);
  bool all_fit = report.fits;
  for (const ScheduleChoice& choice : others) all_fit &= consider({space.base, choice});
  if (all_fit) return report;
  for (const Candidate& candidate : candidate_family(space, minimum, family_size(space)))
    if (!(candidate == minimum)) consider(candidate);
  // Other orders of the same work: larger groups, and updates in the next step's forward pass.
  for (const ScheduleChoice& choice : others) {
    const SearchSpace other = search_space(input, choice);
    Candidate least_of_other = minimum;
    least_of_other.schedule = choice;
    for (const Candidate& candidate :
         candidate_family(other, least_of_other, family_size(other) / kOtherShare))
      consider(candidate);
  }
  consider_plan(least);
  if (!report.fits) report.plan = std::move(least);
  return report;
}

std::string shortfall_message(const PlanReport& report, const Budgets& budgets) {
  const bool device = budgets.device < report.device_minimum_bytes;
  const bool host = budgets.host < report.host_of_minimum_bytes;
  std::string what, set;
  if (device) {
    what = fmt::format("device memory {} is {} below the minimum of {} for this model",
                       format_bytes(budgets.device),
                       format_bytes(report.device_minimum_bytes - budgets.device),
                       format_bytes(report.device_minimum_bytes));
    set =
        fmt::format("memory.device to at least \"{}\"", size_at_least(report.device_minimum_bytes));
  }
  if (host) {
    what += fmt::format(
        "{}host memory {} is {} below the {} that the plan of least device memory "
        "needs",
        device ? ", and " : "", format_bytes(budgets.host),
        format_bytes(report.host_of_minimum_bytes - budgets.host),
        format_bytes(report.host_of_minimum_bytes));
    set += fmt::format("{}memory.host to at least \"{}\"", device ? " and " : "",
                       size_at_least(report.host_of_minimum_bytes));
  }
  if (what.empty())
    return fmt::format(
        "does not fit: this plan needs {} of device memory and {} of host memory, there are {} and "
        "{}",
        format_bytes(report.plan.device.peak), format_bytes(report.plan.host.peak),
        format_bytes(budgets.device), format_bytes(budgets.host));
  return fmt::format("does not fit: {}; set {}", what, set);
}

}  // namespace spillway
