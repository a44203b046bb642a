// From bounds to plans: group sizes in the order of their bounds, each until no plan of it can be
// faster than the best one found.
#include <algorithm>
#include <cmath>
#include <limits>

#include "plan/rounding.h"
#include "plan/search.h"

namespace spillway {
namespace {

constexpr int32_t kBlocks = 8;
constexpr int kRungs = 24;     // between the least memory and all resident
constexpr size_t kGroups = 2;  // that are rounded in any case
// More of them where the best plan is slower than this times the bound: what rounds badly in one
// order of the work may do well in the next.
constexpr double kFar = 1.06;
constexpr size_t kMoreGroups = 6;
// A plan this close to the bound is as good as any.
constexpr double kCloseEnough = 1.002;

struct GroupBound {
  StepModel model;
  double bound = 0;
  bool on_host = false;  // updates are, in the program's solution, that no pin asks for
};

constexpr double kSomeOnHost = 0.02;  // of all layers

bool updates_on_host(const StepModel& model, const BoundLp& program,
                     const std::vector<double>& columns) {
  double parts = 0;
  for (const UpdatePosition p : {UpdatePosition::host, UpdatePosition::host_rotated})
    for (int32_t b = 0; b < model.buckets; ++b) {
      if (const int32_t c = program.share[index_of(p)][b]; c >= 0) parts += columns[c];
      parts -= model.updates[b].pinned[index_of(p)];
    }
  return parts > kSomeOnHost * model.buckets;
}

// Certificates list what has a multiplier, in the order of rows. Signs that only the solver's
// tolerance explains are left out, as dual_bound does.
std::vector<std::pair<std::string, double>> named(const Lp& lp, const std::vector<double>& duals) {
  std::vector<std::pair<std::string, double>> result;
  for (size_t r = 0; r < lp.rows.size(); ++r)
    if (duals[r] != 0 && !std::isinf(duals[r] > 0 ? lp.rows[r].lower : lp.rows[r].upper))
      result.push_back({lp.rows[r].name, duals[r]});
  return result;
}

class BoundSearch {
 public:
  BoundSearch(const PlanInput& input, PlanReport& report, int layouts,
              const std::function<void(Plan)>& offer,
              const std::function<void(Plan)>& offer_on_host)
      : input_(input),
        report_(report),
        offer_(offer),
        offer_on_host_(offer_on_host),
        affordable_(layouts) {}

  bool run() {
    for (const int32_t group : group_choices(input_.train->spec()))
      groups_.push_back({step_model(input_, group, kBlocks), 0});
    // The optimum is no slower than what has been found; where nothing has, than anything sensible.
    horizon_ = report_.fits ? report_.plan.step_seconds : 1e3 * report_.plan.step_seconds;
    LpSolver::Basis basis;
    for (GroupBound& group : groups_) solve(group, basis);
    std::sort(groups_.begin(), groups_.end(),
              [](const GroupBound& a, const GroupBound& b) { return a.bound < b.bound; });
    for (const Streams streams : {Streams::all, Streams::unless_recomputable, Streams::nothing}) {
      const bool all = streams == Streams::all;
      if (!all && input_.recompute != Mode::automatic) continue;
      layouts_ = all ? affordable_ : affordable_ / 4 + 2;
      for (size_t g = 0; g < std::min(kGroups, groups_.size()); ++g) explore(groups_[g], streams);
      if (!all) continue;
      // The first may have left the second no layouts.
      for (size_t g = layouts_ > 0 ? kGroups : 1;
           g < std::min(kMoreGroups, groups_.size()) && far(groups_[g]); ++g) {
        layouts_ = affordable_ / 8 + 7;
        explore(groups_[g], streams);
      }
    }
    const double best = groups_.front().bound;
    report_.bound_seconds = std::isinf(best) ? 0 : best;
    host_updates_ = true;
    bool any = false;
    for (size_t g = 0; g < std::min(kGroups, groups_.size()); ++g) {
      if (!groups_[g].on_host || close_enough(groups_[g], Streams::all)) continue;
      any = true;
      layouts_ = affordable_ / 4 + 2;
      explore(groups_[g], Streams::all);
    }
    return any;
  }

 private:
  // `basis`: of the group before, and then of this one, whose programs are much alike.
  void solve(GroupBound& group, LpSolver::Basis& basis) {
    const BoundLp program = bound_lp(group.model, input_.profile, input_.budgets, horizon_,
                                     offloads() ? Streams::all : Streams::nothing);
    LpSolver solver(program.lp);
    if (basis.size() == program.lp.columns.size() + program.lp.rows.size())
      solver.start_from(basis);
    const LpSolution solution = solver.solve();
    basis = solver.basis();
    Certificate certificate;
    certificate.group = group.model.choice.group;
    certificate.blocks = kBlocks;
    group.bound = solution.feasible        ? dual_bound(program.lp, solution.duals)
                  : solution.duals.empty() ? 0  // nothing is proven
                                           : std::numeric_limits<double>::infinity();
    certificate.bound_seconds = group.bound;
    if (solution.feasible) group.on_host = updates_on_host(group.model, program, solution.columns);
    if (!solution.duals.empty()) certificate.multipliers = named(program.lp, solution.duals);
    report_.certificates.push_back(std::move(certificate));
  }

  bool offloads() const { return input_.offload == Mode::automatic; }

  // Budgets to plan for: the whole one, and the next below it on a fixed ladder, so that a little
  // more memory finds much the same plans.
  std::vector<Budgets> ladder() const {
    std::vector<Budgets> result = {input_.budgets};
    const auto least = static_cast<double>(report_.device_minimum_bytes);
    const auto all = static_cast<double>(report_.all_resident_device_bytes);
    for (int rung = kRungs; rung >= 0; --rung) {
      const double at = std::pow(static_cast<double>(rung) / kRungs, 1.5);
      const auto bytes = static_cast<int64_t>(least + at * (all - least));
      if (bytes >= input_.budgets.device) continue;
      result.push_back({bytes, input_.budgets.host});
      if (result.size() == 3) break;
    }
    return result;
  }

  bool close_enough(const GroupBound& group, Streams streams) const {
    const double best = streams == Streams::nothing ? report_.no_offload_step_seconds
                        : report_.fits              ? report_.plan.step_seconds
                                                    : 0;
    return best > 0 && best <= group.bound * kCloseEnough;
  }

  // Whether the best plan is far from the bound, and one of this group could be nearer.
  bool far(const GroupBound& group) const {
    return !report_.fits ||
           report_.plan.step_seconds > kFar * std::max(groups_.front().bound, group.bound);
  }

  // Whether sums are sent and parameters gathered ahead of time: both, and less where there is no
  // room for it.
  struct Ahead {
    int32_t reduce_delay, gather_ahead;
  };
  std::vector<Ahead> ways_of_communication() const {
    if (input_.train->spec().ranks == 1) return {{1, 1}};
    if (!input_.train->get({}).shards_parameters(1)) return {{1, 1}, {0, 0}};
    return {{1, 1}, {0, 1}, {0, 0}};
  }

  void explore(const GroupBound& group, Streams streams) {
    const bool offload = streams != Streams::nothing;
    if (std::isinf(group.bound) || (offload && !offloads())) return;
    // Links that are planned full make compute wait for every delay; small rings hide less, large
    // ones leave less memory.
    constexpr RoundingAid kAids[] = {{2, 0.8, 0.003}, {2, 0.6, 0.003}, {3, 1, 0.003},
                                     {2, 0.4, 0.003}, {2, 1, 0.003},   {4, 1, 0.0005},
                                     {1, 1, 0.003},   {2, 1, 0.03}};
    const std::vector<Ahead> ways = ways_of_communication();
    for (const Budgets& budgets : ladder()) {
      // Not of other budgets: what a rung finds depends on it alone.
      LpSolver::Basis basis;
      std::vector<Budgets> beyond(ways.size());
      size_t room = 0;  // the first of `ways` that has some
      for (RoundingAid aid : kAids) {
        if (close_enough(group, streams) || layouts_ <= 0) return;
        aid.host_updates = host_updates_;
        aid.cost_of_bytes /= rate_alone(group.model.resources, Traffic::h2d);
        bool found = false;
        for (; !found && room < ways.size(); room += !found)
          found = round(group, budgets, streams, aid, ways[room], basis, beyond[room]);
        if (!offload && found) return;
        room = std::min(room, ways.size() - 1);
      }
    }
  }

  // Rounds, and takes what the packing needs beyond the budget off the program's budget.
  // Returns whether one fitted. Each program starts where the one before was solved: the first from
  // `basis`, if that is not empty, which becomes its own. `beyond`: what the packing needed beyond
  // the program's budgets, last time; becomes what it needs now.
  bool round(const GroupBound& group, const Budgets& whole, Streams streams, const RoundingAid& aid,
             const Ahead& ahead, LpSolver::Basis& basis, Budgets& beyond) {
    constexpr int kTries = 3;
    LpSolver::Basis start = basis;
    Budgets budgets = {whole.device - beyond.device, whole.host - beyond.host};
    for (int attempt = 1; attempt <= kTries; ++attempt) {
      const BoundLp program =
          bound_lp(group.model, input_.profile, budgets, 1e3 * horizon_, streams, aid);
      LpSolver solver(program.lp);
      if (!start.empty()) solver.start_from(start);
      const LpSolution solution = solver.solve();
      if (!solution.feasible || layouts_ <= 0) return false;
      start = solver.basis();
      if (attempt == 1) basis = start;
      Candidate candidate = rounded(group.model, program, solution.columns, aid);
      candidate.schedule = schedule_of_pins(input_, std::move(candidate.schedule));
      candidate.schedule.reduce_delay = ahead.reduce_delay;
      candidate.schedule.gather_ahead = ahead.gather_ahead;
      for (const auto& [key, where] : placement_of_pins(input_).where)
        candidate.placement.where[key] = where;
      if (std::find(tried_.begin(), tried_.end(), candidate) != tried_.end()) return true;
      --layouts_;
      const Peaks peaks = peaks_of(input_, candidate);
      const int64_t device = peaks.device - input_.budgets.device;
      const int64_t host = peaks.host - input_.budgets.host;
      beyond = {std::max<int64_t>(0, peaks.device - budgets.device),
                std::max<int64_t>(0, peaks.host - budgets.host)};
      if (device <= 0 && host <= 0) {
        Plan plan = lay_out(input_, candidate.placement, candidate.schedule);
        synchronise_and_time(input_, plan);
        tried_.push_back(std::move(candidate));
        (host_updates_ ? offer_on_host_ : offer_)(std::move(plan));
        return true;
      }
      budgets.device -= correction(device, whole.device, attempt);
      budgets.host -= correction(host, whole.host, attempt);
    }
    return false;
  }

  // Of a program's budget whose plan took `beyond` more than there is: a little more than that, so
  // that the next one does not miss by the size of a unit.
  static int64_t correction(int64_t beyond, int64_t budget, int attempt) {
    return beyond <= 0 ? 0 : beyond * (attempt + 1) / 2 + budget / 1000;
  }

  const PlanInput& input_;
  PlanReport& report_;
  const std::function<void(Plan)>&offer_, &offer_on_host_;
  bool host_updates_ = false;  // that no pin asks for
  int affordable_ = 0;
  std::vector<GroupBound> groups_;
  double horizon_ = 0;
  int layouts_ = 0;  // that may still be tried
  std::vector<Candidate> tried_;
};

}  // namespace

bool search_by_bound(const PlanInput& input, PlanReport& report, int layouts,
                     const std::function<void(Plan)>& offer,
                     const std::function<void(Plan)>& offer_on_host) {
  return BoundSearch(input, report, layouts, offer, offer_on_host).run();
}

}  // namespace spillway
