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

constexpr double kWorthImproving = 1.005;

// Evaluations that a model can afford: many for a small one. A few are needed to find a plan at
// all; what they lose by rounding is little in a large model.
constexpr int kFew = 8;
int evaluations(const SearchSpace& space, int least) {
  return static_cast<int>(
      std::clamp<int64_t>(100000 / std::max<int64_t>(1, space.nodes), least, 160));
}

// Where ranks sum after several micro-batches, the partial sums of a layer are whole gradients, and
// live on unless all these micro-batches visit it together.
Candidate least_of_orders(const SearchSpace& space) {
  const PlanInput& input = *space.input;
  const ParallelSpec& spec = input.train->spec();
  Candidate least = least_device_memory(space);
  const auto together = static_cast<int32_t>(spec.reduce_every);
  const std::vector<int32_t> groups = group_choices(spec);
  if (spec.ranks == 1 || together == space.choice.group ||
      std::find(groups.begin(), groups.end(), together) == groups.end())
    return least;
  ScheduleChoice choice = space.choice;
  choice.group = together;
  Candidate other = least_device_memory(search_space(input, choice));
  const auto device = [&](const Candidate& c) { return peaks_of(input, c).device; };
  return device(other) < device(least) ? other : least;
}

// The fastest plan whose stage is `input`'s in all layers.
PlanReport plan_of_stage(const PlanInput& input) {
  const SearchSpace space = search_space(input);
  PlanReport report;
  report.plan = evaluate_placement(input, space.base, space.choice);
  report.all_resident_device_bytes = report.plan.device.peak;
  report.all_resident_step_seconds = report.plan.step_seconds;
  const Candidate minimum = least_of_orders(space);
  Plan least = evaluate_placement(input, minimum.placement, minimum.schedule);
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
  consider_plan(least);
  if (!report.fits) report.plan = std::move(least);
  std::optional<Plan> on_host;
  const bool host_updates =
      search_by_bound(input, report, evaluations(space, kFew), consider_plan, [&](Plan plan) {
        if (fits(plan, input.budgets) && (!on_host || rank(plan) < rank(*on_host)))
          on_host = std::move(plan);
      });
  if (report.fits && report.plan.step_seconds > report.bound_seconds * kWorthImproving) {
    const SearchSpace around = search_space(input, report.plan.schedule);
    report.plan = improved(around, std::move(report.plan), input.budgets, evaluations(around, 0));
    note_no_offload(report.plan, report);
  }
  // Apart from the search without them, so that a plan is never slower for updates on the host.
  if (on_host) consider_plan(std::move(*on_host));
  if (report.fits && host_updates) {
    const SearchSpace around = search_space(input, report.plan.schedule);
    consider_plan(
        improved(around, report.plan, input.budgets, evaluations(around, kFew) / 2, true));
  }
  if (report.fits && report.plan.device.peak < report.device_minimum_bytes) {
    report.device_minimum_bytes = report.plan.device.peak;  // states of no update pass through
    report.host_of_minimum_bytes = report.plan.host.peak;
  }
  // In the order of the work that was found best, nothing may have to move at all.
  if (report.fits) {
    const Candidate resident{search_space(input, report.plan.schedule).base, report.plan.schedule};
    const Peaks peaks = peaks_of(input, resident);
    if (peaks.device <= input.budgets.device && peaks.host <= input.budgets.host)
      consider_plan(evaluate_placement(input, resident.placement, resident.schedule));
  }
  return report;
}

bool better(const PlanReport& a, const PlanReport& b) {
  if (a.fits != b.fits) return a.fits;
  if (a.fits) return a.plan.step_seconds < b.plan.step_seconds;
  return a.device_minimum_bytes < b.device_minimum_bytes;
}

// The least memory, and the fastest plan without offload, of both.
void take_least(const PlanReport& from, PlanReport& report) {
  if (from.device_minimum_bytes < report.device_minimum_bytes) {
    report.device_minimum_bytes = from.device_minimum_bytes;
    report.host_of_minimum_bytes = from.host_of_minimum_bytes;
  }
  if (from.no_offload_device_bytes > 0 &&
      (report.no_offload_device_bytes == 0 ||
       from.no_offload_step_seconds < report.no_offload_step_seconds)) {
    report.no_offload_device_bytes = from.no_offload_device_bytes;
    report.no_offload_step_seconds = from.no_offload_step_seconds;
  }
}

}  // namespace

// A free stage: each of the four in all layers, of which the best is taken; mixtures of stages are
// not tried. The bound and its certificates are those of the stage that is taken.
PlanReport make_plan(const PlanInput& input) {
  if (!input.train->spec().zero_is_free) return plan_of_stage(input);
  const size_t layers = static_cast<size_t>(input.train->get({}).graph.layers) + 2;
  PlanReport best;
  for (int32_t stage = 0; stage < 4; ++stage) {
    const TrainSchedules train = input.train->with_zero(stage);
    const ForwardSchedules evaluate =
        input.evaluate != nullptr ? input.evaluate->with_zero(stage) : ForwardSchedules();
    PlanInput of_stage = input;
    of_stage.train = &train;
    if (input.evaluate != nullptr) of_stage.evaluate = &evaluate;
    PlanReport report = plan_of_stage(of_stage);
    report.plan.schedule.zero.assign(layers, stage);
    if (stage > 0) {
      if (better(report, best)) std::swap(report, best);
      take_least(report, best);
    } else {
      best = std::move(report);
    }
  }
  return best;
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
