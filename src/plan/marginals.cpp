#include "plan/marginals.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "plan/bound_lp.h"

namespace spillway {
namespace {

// The linear program of one group size at its optimum, and how its value changes with its data.
class BoundRates {
 public:
  BoundRates(const PlanInput& input, const Certificate& certificate, double horizon)
      : input_(input), certificate_(certificate), horizon_(horizon) {
    const BoundLp here = program(input_);
    LpSolver solver(here.lp);
    optimum_ = solver.solve();
    if (optimum_.feasible) value_ = lagrangian(here.lp);
  }

  // The value less what `amount` more saves at the rate of the first little bit of it: the
  // Lagrangian's derivative where variables and multipliers stay.
  double value_with(Resource resource, double amount) const {
    if (!optimum_.feasible) return std::numeric_limits<double>::infinity();
    constexpr double kLittle = 1e-4;
    const double step = std::max(1.0, std::floor(kLittle * amount));
    const BoundLp there = program(with_more(input_, resource, step));
    // Which resources have rows depends on the rates.
    if (there.lp.rows.size() != optimum_.duals.size()) return value_;
    const double more = lagrangian(there.lp);
    return value_ - (value_ - more) / step * amount;
  }
  double value() const { return value_; }

 private:
  BoundLp program(const PlanInput& input) const {
    return bound_lp(step_model(input, certificate_.group, certificate_.blocks), input.profile,
                    input.budgets, horizon_,
                    input.offload == Mode::automatic ? Streams::all : Streams::nothing);
  }

  double lagrangian(const Lp& lp) const {
    double value = 0;
    for (size_t c = 0; c < lp.columns.size(); ++c)
      value += lp.columns[c].cost * optimum_.columns[c];
    for (size_t r = 0; r < lp.rows.size(); ++r) {
      const double y = optimum_.duals[r];
      double slack = y > 0 ? lp.rows[r].lower : lp.rows[r].upper;
      if (y == 0 || std::isinf(slack)) continue;
      for (const auto& [column, coefficient] : lp.rows[r].terms)
        slack -= coefficient * optimum_.columns[column];
      value += y * slack;
    }
    return value;
  }

  const PlanInput& input_;
  const Certificate& certificate_;
  double horizon_ = 0, value_ = std::numeric_limits<double>::infinity();
  LpSolution optimum_;
};

// The largest round amount that is at most an eighth of `there`: a power of two of bytes, a power
// of ten of bytes a second.
double round_amount(double there, double most, double base) {
  double amount = most;
  while (amount > there / 8 && amount > base) amount /= base;
  return amount;
}

double amount_of(Resource resource, const PlanInput& input) {
  constexpr double kGiB = 1 << 30, kGB = 1e9;
  const HardwareProfile& p = input.profile;
  switch (resource) {
    case Resource::device_memory:
      return round_amount(static_cast<double>(input.budgets.device), kGiB, 2);
    case Resource::host_memory:
      return round_amount(static_cast<double>(input.budgets.host), kGiB, 2);
    case Resource::link:
      return round_amount(std::min(p.h2d_bandwidth, p.d2h_bandwidth), kGB, 10);
    case Resource::peers:
      return round_amount(p.intra_node_bandwidth, kGB, 10);
    case Resource::network:
      return round_amount(p.network_bandwidth, kGB, 10);
  }
  return 0;
}

// The run's schedules at the stage that the report's bound is of.
struct Staged {
  TrainSchedules train;
  ForwardSchedules evaluate;
  PlanInput input;
  Staged(const PlanInput& from, const PlanReport& report) : input(from) {
    if (!from.train->spec().zero_is_free) return;
    const int32_t stage = report.plan.schedule.zero_of(0, from.train->spec());
    train = from.train->with_zero(stage);
    input.train = &train;
    if (from.evaluate == nullptr) return;
    evaluate = from.evaluate->with_zero(stage);
    input.evaluate = &evaluate;
  }
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;
};

}  // namespace

PlanInput with_more(const PlanInput& input, Resource resource, double amount) {
  PlanInput more = input;
  HardwareProfile& p = more.profile;
  switch (resource) {
    case Resource::device_memory:
      more.budgets.device += static_cast<int64_t>(amount);
      break;
    case Resource::host_memory:
      more.budgets.host += static_cast<int64_t>(amount);
      break;
    case Resource::link:
      for (double* rate :
           {&p.h2d_bandwidth, &p.d2h_bandwidth, &p.h2d_alone_bandwidth, &p.d2h_alone_bandwidth})
        *rate += amount;
      p.both_ways_bandwidth += 2 * amount;
      p.uplink_bandwidth += amount * p.devices_per_uplink;
      break;
    case Resource::peers:
      p.intra_node_bandwidth += amount;
      break;
    case Resource::network:
      p.network_bandwidth += amount;
      break;
  }
  return more;
}

std::vector<Marginal> marginal_values(const PlanInput& input, const PlanReport& report,
                                      bool several_nodes) {
  std::vector<Marginal> values;
  if (!report.fits || report.bound_seconds <= 0) return values;
  const Staged staged(input, report);
  // The bound is the least of all group sizes': with more, another may be the one.
  std::vector<std::unique_ptr<BoundRates>> groups;
  double bound = std::numeric_limits<double>::infinity();
  for (const Certificate& certificate : report.certificates) {
    groups.push_back(
        std::make_unique<BoundRates>(staged.input, certificate, report.plan.step_seconds));
    bound = std::min(bound, groups.back()->value());
  }
  std::vector<Resource> resources = {Resource::device_memory, Resource::host_memory,
                                     Resource::link};
  if (input.train->spec().ranks > 1) resources.push_back(Resource::peers);
  if (several_nodes) resources.push_back(Resource::network);
  for (const Resource resource : resources) {
    Marginal value;
    value.resource = resource;
    value.amount = amount_of(resource, input);
    for (const auto& group : groups)
      value.dual_seconds =
          std::max(value.dual_seconds, bound - group->value_with(resource, value.amount));
    const PlanInput more = with_more(input, resource, value.amount);
    const PlanReport planned = make_plan(more);
    const Plan same = evaluate_placement(more, report.plan.placement, report.plan.schedule);
    value.step_seconds = std::min(planned.plan.step_seconds, same.step_seconds);
    value.bound_seconds = planned.bound_seconds;
    value.replanned_seconds = std::max(0.0, report.plan.step_seconds - value.step_seconds);
    values.push_back(value);
  }
  return values;
}

}  // namespace spillway
