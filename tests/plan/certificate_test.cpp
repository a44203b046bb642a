// The verifier's linear programs against the planner's, certificates altered by hand, and bounds
// against every placement of small models.
// links: spillway_train
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <random>
#include <set>

#include "base/error.h"
#include "plan/bound_lp.h"
#include "plan/search.h"
#include "tests/plan/planner_input.h"
#include "train/quality.h"

namespace spillway {
namespace {

struct Case {
  const char* label;
  const char* model;
  int ranks;
  double budget;  // between the least memory and all resident
  std::vector<std::string> set;
  void (*alter)(HardwareProfile&) = nullptr;
  int ranks_on_node = 0;  // 0: all
};

// Profiles on which copies and messages slow each other down.
void slow_host(HardwareProfile& p) { p.host_bandwidth = 2.5 * p.h2d_alone_bandwidth; }
void slow_link(HardwareProfile& p) {
  p.both_ways_bandwidth = 1.2 * p.h2d_alone_bandwidth;
  p.intra_node_path = MessagePath::link;
}
void everything_through_the_host(HardwareProfile& p) {
  p.kind = "cuda";
  p.devices_per_uplink = 2;
  p.uplink_bandwidth = 1.5 * p.h2d_alone_bandwidth;
  p.intra_node_path = p.network_path = MessagePath::host;
}

constexpr const char* kGpt2 =
    R"({"model": {"family": "gpt2", "layers": 5, "hidden": 64, "heads": 4, "ffn": 256,
        "context": 128, "tied_head": true}, "data": {"train": ["x.txt"], "validation": 0.1},
        "train": {"batch": 16, "micro_batch": 2, "eval_every": 10},
        "hardware": {"profile": "cpu", "link": "1GB/s"}})";
constexpr const char* kLlama =
    R"({"model": {"family": "llama", "layers": 12, "hidden": 64, "heads": 4, "kv_heads": 2,
        "ffn": 176, "context": 64, "tied_head": false}, "data": {"train": ["x.txt"]},
        "train": {"batch": 24, "micro_batch": 2, "precision": "bf16"},
        "hardware": {"profile": "cpu", "link": "2GB/s"}})";

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"gpt2", kGpt2, 1, 0.2, {}},
      {"gpt2 in little memory", kGpt2, 1, 0.02, {}},
      {"gpt2 without offload", kGpt2, 1, 0.6, {"offload=off"}},
      {"gpt2 on two ranks", kGpt2, 2, 0.3, {"parallel.zero=2", "parallel.reduce_every=2"}},
      {"gpt2, pinned",
       kGpt2,
       1,
       0.3,
       {R"(place={"qkv": "host", "moments@0-2": "device", "ffn_up@1": "recompute", "ffn_up@2": "host"})"}},
      {"llama", kLlama, 1, 0.3, {}},
      {"llama without recompute", kLlama, 1, 0.4, {"recompute=off"}},
      {"llama on three ranks", kLlama, 3, 0.3, {"parallel.zero=1"}},
      {"llama, all sharded", kLlama, 4, 0.3, {"parallel.zero=3"}},
      {"llama, all sharded in nodes", kLlama, 4, 0.2, {"parallel.zero=3", "parallel.tree=2"}},
      {"llama, one micro-batch", kLlama, 1, 0.3, {"train.batch=2"}},
      {"llama, two micro-batches", kLlama, 1, 0.3, {"train.batch=4"}},
      {"gpt2, a slow host", kGpt2, 1, 0.2, {}, slow_host},
      {"llama on three ranks, a slow link", kLlama, 3, 0.3, {"parallel.zero=2"}, slow_link},
      {"llama, all sharded in nodes, all shared",
       kLlama,
       4,
       0.2,
       {"parallel.zero=3", "parallel.tree=2"},
       everything_through_the_host,
       2},
  };
  return all;
}

int64_t budget_of(PlannerInput& p, double part) {
  const SearchSpace space = search_space(p.input);
  const Candidate least = least_device_memory(space);
  const auto low = static_cast<double>(peaks_of(p.input, least).device);
  const auto high = static_cast<double>(peaks_of(p.input, {space.base, {}}).device);
  return static_cast<int64_t>(low + part * (high - low));
}

bool shares(const std::multiset<std::string>& rows) {
  return std::any_of(rows.begin(), rows.end(),
                     [](const std::string& name) { return name.starts_with("shared "); });
}

TEST(Certificate, RowsAndBoundsAreThePlanners) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.label);
    PlannerInput p(c.model, c.set, c.ranks);
    if (c.alter != nullptr) c.alter(p.input.profile);
    if (c.ranks_on_node > 0) p.input.ranks_on_node = c.ranks_on_node;
    p.input.budgets = {budget_of(p, c.budget), int64_t{1} << 60};
    const double horizon =
        evaluate_placement(p.input, search_space(p.input).base, {}).step_seconds * 2;
    for (const int32_t group : group_choices(p.train.spec())) {
      SCOPED_TRACE(group);
      constexpr int32_t kBlocks = 4;
      const StepModel model = step_model(p.input, group, kBlocks);
      const BoundLp planner =
          bound_lp(model, p.input.profile, p.input.budgets, horizon,
                   p.input.offload == Mode::automatic ? Streams::all : Streams::nothing);
      const LpSolution solution = LpSolver(planner.lp).solve();
      const CertificateProgram own =
          certificate_program(certificate_input(p.input), group, kBlocks, p.input.budgets, horizon);
      std::multiset<std::string> theirs, ours;
      Certificate certificate{group, kBlocks, 0, {}};
      for (size_t r = 0; r < planner.lp.rows.size(); ++r) {
        const LpRow& row = planner.lp.rows[r];
        theirs.insert(row.name);
        const double y = solution.duals[r];
        if (y != 0 && !std::isinf(y > 0 ? row.lower : row.upper))
          certificate.multipliers.emplace_back(row.name, y);
      }
      for (const CertificateRow& row : own.rows) ours.insert(row.name);
      std::vector<std::string> apart;
      std::set_symmetric_difference(theirs.begin(), theirs.end(), ours.begin(), ours.end(),
                                    std::back_inserter(apart));
      if (c.alter != nullptr) {
        EXPECT_TRUE(shares(ours));
      }
      EXPECT_TRUE(apart.empty()) << fmt::format("{}", fmt::join(apart, "\n"));
      EXPECT_EQ(std::set<std::string>(ours.begin(), ours.end()).size(), ours.size());
      const double proven = proven_seconds(own, certificate);
      if (!solution.feasible) {
        EXPECT_TRUE(std::isinf(proven));
        continue;
      }
      const double bound = dual_bound(planner.lp, solution.duals);
      EXPECT_NEAR(bound, solution.objective, 1e-6 * bound);
      EXPECT_NEAR(proven, bound, 1e-3 * bound);
      fmt::print("{:<28} group {:2}: planner {:.6f} ms, verifier {:.6f} ms\n", c.label, group,
                 1e3 * bound, 1e3 * proven);
    }
  }
}

// With one micro-batch, the sums of a tied table's second use are added to the first's where they
// were made: streamed, they have no bytes on the host. A plan that just fits there is possible.
TEST(Certificate, WhatNeverGoesHomeTakesNoHostMemory) {
  for (const char* update : {"end", "rotated"}) {
    PlannerInput p(kGpt2, {"train.batch=2", R"(place={"gradients@embed": "host"})",
                           std::string("place.update=") + update});
    const Plan plan =
        evaluate_placement(p.input, placement_of_pins(p.input), schedule_of_pins(p.input, {}));
    const PlanReport report = p.plan(plan.device.peak, plan.host.peak);
    ASSERT_TRUE(report.fits);
    EXPECT_GT(report.bound_seconds, 0);
    EXPECT_LE(report.bound_seconds, plan.step_seconds);
    const std::optional<QualityProof> proof = quality_proof(report, p.input);
    ASSERT_TRUE(proof);
    const double bound =
        check_quality(certificate_input(p.input), *proof, report.plan.step_seconds, "plan.json");
    EXPECT_NEAR(bound, report.bound_seconds, 1e-3 * bound);
  }
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::bad_input) << e.what();
    return e.what();
  }
  return "";
}

// Rows of updates on the host count: a multiplier of one that is altered proves less than is
// claimed, and so does the whole where the host is faster than the plan was made for.
TEST(Certificate, UpdatesOnTheHostAreHeldToTheirRows) {
  PlannerInput p(kLlama, {});
  HardwareProfile& profile = p.input.profile;
  profile.kind = "cuda";
  set_link(profile, 0.2e9);
  profile.cpu_update_bandwidth = profile.host_bandwidth = 4e9;
  const PlanReport report = p.plan(p.plan(0).device_minimum_bytes * 5 / 4);
  ASSERT_TRUE(report.fits);
  const std::optional<QualityProof> good = quality_proof(report, p.input);
  ASSERT_TRUE(good);
  const double step = report.plan.step_seconds;
  check_quality(certificate_input(p.input), *good, step, "plan.json");
  int altered = 0;
  for (size_t c = 0; c < good->certificates.size(); ++c)
    for (size_t m = 0; m < good->certificates[c].multipliers.size(); ++m) {
      const auto& [name, value] = good->certificates[c].multipliers[m];
      if (name.find("updates") == std::string::npos || value == 0) continue;
      QualityProof worse = *good;
      worse.certificates[c].multipliers[m].second *= -3;  // a wrong sign proves nothing
      const std::string message =
          error_of([&] { check_quality(certificate_input(p.input), worse, step, "plan.json"); });
      EXPECT_NE(message, "") << name;
      ++altered;
    }
  EXPECT_GT(altered, 0);
  std::printf("%d multipliers of such rows\n", altered);
  profile.cpu_update_bandwidth = profile.host_bandwidth = 400e9;
  EXPECT_NE(error_of([&] {
              check_quality(certificate_input(p.input), *good, step, "plan.json");
            }).find("claims"),
            std::string::npos);
}

// A proof altered by hand is refused in one line that names the file and what is wrong.
TEST(Certificate, AlteredByHand) {
  PlannerInput p(kGpt2, {});
  const PlanReport report = p.plan(budget_of(p, 0.2));
  ASSERT_TRUE(report.fits);
  const std::optional<QualityProof> good = quality_proof(report, p.input);
  ASSERT_TRUE(good);
  ASSERT_EQ(good->certificates.size(), group_choices(p.train.spec()).size());
  const CertificateInput input = certificate_input(p.input);
  const double step = report.plan.step_seconds;
  const double bound = check_quality(input, *good, step, "plan.json");
  EXPECT_NEAR(bound, report.bound_seconds, 1e-3 * bound);
  EXPECT_GE(bound, report.bound_seconds * (1 - 1e-9));
  EXPECT_LE(bound, step);
  const auto refused = [&](const std::string& part, const auto& alter, double seconds) {
    QualityProof altered = *good;
    alter(altered);
    const std::string message =
        error_of([&] { check_quality(input, altered, seconds, "plan.json"); });
    EXPECT_TRUE(message.starts_with("plan.json: ")) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  };
  // The certificate on which the bound rests.
  size_t tight = 0;
  for (size_t c = 0; c < good->certificates.size(); ++c)
    if (good->certificates[c].bound_seconds < good->certificates[tight].bound_seconds) tight = c;
  const auto row = [&](QualityProof& q,
                       const std::string& prefix) -> std::pair<std::string, double>& {
    for (auto& m : q.certificates[tight].multipliers)
      if (m.first.starts_with(prefix) && m.second != 0) return m;
    throw std::runtime_error("no multiplier of " + prefix);
  };
  const int32_t group = good->certificates[tight].group;
  const std::string of_group = fmt::format("group {}", group);
  refused(
      "bound_seconds", [](QualityProof& q) { q.bound_seconds *= 1.001; }, step);
  refused(
      of_group + " claims", [&](QualityProof& q) { row(q, "compute ").second *= 3; }, step);
  refused(
      of_group + " claims", [&](QualityProof& q) { row(q, "device memory").second *= 0.5; }, step);
  refused(
      of_group + " claims", [&](QualityProof& q) { row(q, "device memory").second = 0; }, step);
  refused(
      of_group + " is missing",
      [&](QualityProof& q) { q.certificates.erase(q.certificates.begin() + tight); }, step);
  refused(
      "two certificates of " + of_group,
      [&](QualityProof& q) { q.certificates.push_back(q.certificates[tight]); }, step);
  refused(
      "group 3", [&](QualityProof& q) { q.certificates[tight].group = 3; }, step);
  refused(
      "\"device memry\"", [&](QualityProof& q) { row(q, "device memory").first = "device memry"; },
      step);
  refused(
      "must not be above 0", [&](QualityProof& q) { row(q, "device memory").second *= -1; }, step);
  refused(
      "expected a number", [&](QualityProof& q) { row(q, "compute ").second = std::nan(""); },
      step);
  refused(
      "expected a number",
      [&](QualityProof& q) { row(q, "compute ").second = std::numeric_limits<double>::infinity(); },
      step);
  refused(
      "twice",
      [&](QualityProof& q) {
        auto& m = q.certificates[tight].multipliers;
        m.push_back(m.front());
      },
      step);
  refused(
      "claims", [](QualityProof& q) { q.budgets.device *= 2; }, step);
  refused(
      "does not have", [&](QualityProof& q) { q.certificates[tight].blocks = 1; }, step);
  refused(
      "buckets", [&](QualityProof& q) { q.certificates[tight].blocks = 0; }, step);
  refused(
      "of a step of", [](QualityProof&) {}, report.bound_seconds * 0.99);
  // What claims less is true as well.
  QualityProof modest = *good;
  modest.bound_seconds /= 2;
  EXPECT_EQ(check_quality(input, modest, step, "plan.json"), bound);
}

// Where host memory passes less than the link's two ways ask of it, the rows of what is shared are
// what makes the bound, and no proof does without them.
TEST(Certificate, WhatIsSharedBinds) {
  PlannerInput p(kGpt2, {"recompute=off"});
  HardwareProfile& profile = p.input.profile;
  profile.kind = "cuda";
  profile.host_bandwidth = profile.h2d_alone_bandwidth;  // what one way takes
  profile.copy_seconds = 0;
  const PlanReport report = p.plan(budget_of(p, 0.3));
  ASSERT_TRUE(report.fits);
  const std::optional<QualityProof> proof = quality_proof(report, p.input);
  ASSERT_TRUE(proof);
  const CertificateInput input = certificate_input(p.input);
  const double step = report.plan.step_seconds;
  EXPECT_LE(check_quality(input, *proof, step, "plan.json"), step);
  double without = std::numeric_limits<double>::infinity();
  for (const int32_t group : group_choices(p.train.spec())) {
    BoundLp lp = bound_lp(step_model(p.input, group, 8), p.input.profile, p.input.budgets, step,
                          Streams::all);
    std::erase_if(lp.lp.rows, [](const LpRow& r) { return r.name.starts_with("shared "); });
    const LpSolution solution = LpSolver(lp.lp).solve();
    if (solution.feasible) without = std::min(without, dual_bound(lp.lp, solution.duals));
  }
  fmt::print("step {:.3f} ms, bound {:.3f} ms, {:.3f} ms without what is shared\n", 1e3 * step,
             1e3 * report.bound_seconds, 1e3 * without);
  EXPECT_GT(report.bound_seconds, 1.3 * without);
  EXPECT_LT(step, 1.1 * report.bound_seconds);
  for (const double factor : {0.0, 0.5, 2.0}) {
    QualityProof altered = *proof;
    for (Certificate& c : altered.certificates)
      for (auto& [name, value] : c.multipliers)
        if (name.starts_with("shared ")) value *= factor;
    const std::string message = error_of([&] { check_quality(input, altered, step, "plan.json"); });
    EXPECT_NE(message.find(" claims "), std::string::npos) << factor << ": " << message;
  }
  // Without contention there are no such rows.
  CertificateInput fast = input;
  fast.profile.host_bandwidth *= 4;
  EXPECT_NE(error_of([&] { check_quality(fast, *proof, step, "plan.json"); }).find("does not have"),
            std::string::npos);
}

// Rates of a machine on which anything may be what limits a step.
HardwareProfile random_profile(HardwareProfile p, std::mt19937_64& rng) {
  const auto between = [&](double low, double high) {
    return low * std::pow(high / low, std::uniform_real_distribution<double>(0, 1)(rng));
  };
  p.kind = rng() % 2 ? "cpu" : "cuda";
  p.devices_per_node = 4;
  p.devices_per_uplink = 1 << rng() % 3;
  p.h2d_alone_bandwidth = between(0.3e9, 10e9);
  p.d2h_alone_bandwidth = p.h2d_alone_bandwidth * between(0.5, 2);
  p.h2d_bandwidth = p.h2d_alone_bandwidth * between(0.5, 1);
  p.d2h_bandwidth = p.d2h_alone_bandwidth * between(0.5, 1);
  p.both_ways_bandwidth = (p.h2d_alone_bandwidth + p.d2h_alone_bandwidth) * between(0.4, 1.2);
  p.uplink_bandwidth = p.h2d_alone_bandwidth * between(0.5, 4);
  p.host_bandwidth = p.h2d_alone_bandwidth * between(1, 16);
  p.intra_node_bandwidth = between(0.1e9, 20e9);
  p.network_bandwidth = between(0.1e9, 5e9);
  p.intra_node_path = static_cast<MessagePath>(rng() % 3);
  p.network_path = static_cast<MessagePath>(rng() % 3);
  p.copy_seconds = rng() % 3 ? between(1e-7, 3e-5) : 0;
  p.exchange_seconds = rng() % 3 ? between(1e-7, 5e-5) : 0;
  p.launch_seconds = between(1e-7, 1e-5);
  p.cpu_update_bandwidth = between(0.3e9, 30e9);
  return p;
}

std::string random_model(std::mt19937_64& rng, int ranks) {
  const bool is_gpt2 = rng() % 2;
  const int micro_batches = 1 << rng() % 4;
  return fmt::format(
      R"({{"model": {{"family": "{}", "layers": {}, "hidden": 64, "heads": 4, "ffn": {},
          "context": {}, "tied_head": {}}}, "data": {{"train": ["x.txt"]}},
          "train": {{"batch": {}, "micro_batch": 1, "precision": "{}"}},
          "optimizer": {{"clip": {}}}, "hardware": {{"profile": "cpu"}}}})",
      is_gpt2 ? "gpt2" : "llama", 1 + rng() % 5, is_gpt2 ? 256 : 176, 64 << rng() % 3,
      rng() % 2 ? "true" : "false", micro_batches * ranks, rng() % 2 ? "f32" : "bf16", rng() % 2);
}

// A job on such a machine, on some of its nodes.
struct RandomJob {
  std::string text;
  PlannerInput p;
  static RandomJob make(std::mt19937_64& rng) {
    const int ranks = 1 + static_cast<int>(rng() % 4);
    std::vector<std::string> set;
    if (ranks > 1) set.push_back(fmt::format("parallel.zero={}", rng() % 4));
    if (ranks == 4 && rng() % 2) set.push_back("parallel.tree=2");
    return {random_model(rng, ranks), set, ranks, rng};
  }
  RandomJob(std::string model, const std::vector<std::string>& set, int ranks, std::mt19937_64& rng)
      : text(fmt::format("{} {} on {}", model, fmt::join(set, " "), ranks)), p(model, set, ranks) {
    p.input.profile = random_profile(p.input.profile, rng);
    if (ranks == 4 && rng() % 2) p.input.ranks_on_node = 2;
    if (ranks < 4 && rng() % 4 == 0) p.input.ranks_on_node = 1;
  }
};

Candidate random_candidate(const PlannerInput& p, std::mt19937_64& rng) {
  Candidate c;
  const std::vector<int32_t> groups = group_choices(p.train.spec());
  c.schedule.group = groups[rng() % groups.size()];
  c.schedule.reduce_delay = rng() % 2;
  c.schedule.gather_ahead = rng() % 2;
  // All updates at one position, or each at any, of those on the device, the host, or both.
  const auto alike = rng() % 3, from = 2 * (rng() % 2);
  const auto kinds = rng() % 3 == 0 ? 4 : 2;
  const bool may = p.input.profile.kind != "cpu";
  const auto position = [&] {
    const auto drawn = kinds == 4 ? rng() % 4 : from + rng() % 2;
    return static_cast<UpdatePosition>(may ? drawn : drawn % 2);
  };
  const UpdatePosition first = position();
  for (int layer = 0; layer < p.train.get({}).graph.layers + 2; ++layer)
    c.schedule.update.push_back(alike > 0 ? first : position());
  const auto resident = rng() % 3;  // nothing of it, half, all
  for (const PlaceUnit& unit : place_units(p.train.get(c.schedule))) {
    Where& where = c.placement.where[unit.key];
    where = static_cast<Where>(rng() % (unit.recomputable ? 3 : 2));
    if (resident == 2 || (resident == 1 && rng() % 2)) where = Where::device;
    c.placement.slots[unit.key.first] = 1 + rng() % 3;
  }
  return c;
}

// What the certificate program of the verifier proves by the solution of the planner's.
double bound_of(const PlannerInput& p, int32_t group, int32_t blocks, double horizon) {
  const BoundLp lp = bound_lp(step_model(p.input, group, blocks), p.input.profile, p.input.budgets,
                              horizon, Streams::all);
  const LpSolution solution = LpSolver(lp.lp).solve();
  Certificate certificate{group, blocks, 0, {}};
  for (size_t r = 0; r < solution.duals.size(); ++r)
    if (const double y = solution.duals[r];
        y != 0 && !std::isinf(y > 0 ? lp.lp.rows[r].lower : lp.lp.rows[r].upper))
      certificate.multipliers.emplace_back(lp.lp.rows[r].name, y);
  const double proven = proven_seconds(
      certificate_program(certificate_input(p.input), group, blocks, p.input.budgets, horizon),
      certificate);
  if (solution.feasible) {
    const double bound = dual_bound(lp.lp, solution.duals);
    EXPECT_NEAR(proven, bound, 1e-4 * bound);
  } else {
    EXPECT_TRUE(std::isinf(proven));
  }
  return proven;
}

// Whatever moves where, whichever update rotates, in whatever order, over links, uplinks and host
// memory that are shared with anything: no step is faster than the bound at the memory that it
// uses.
TEST(Certificate, NoPlanIsFasterThanItsBound) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  fmt::print("seed {}\n", seed);
  std::mt19937_64 rng(seed);
  double closest = 0, closest_on_host = 0;
  int shared = 0, on_host = 0;
  for (int trial = 0; trial < 60; ++trial) {
    RandomJob job = RandomJob::make(rng);
    SCOPED_TRACE(job.text);
    for (int plans = 0; plans < 3; ++plans) {
      const Candidate c = random_candidate(job.p, rng);
      const Plan plan = evaluate_placement(job.p.input, c.placement, c.schedule);
      job.p.input.budgets = {plan.device.peak, plan.host.peak};
      const int32_t group = c.schedule.group, blocks = 1 + static_cast<int32_t>(rng() % 6);
      const double bound = bound_of(job.p, group, blocks, 2 * plan.step_seconds);
      EXPECT_LE(bound, plan.step_seconds * (1 + 1e-6)) << "trial " << trial;
      closest = std::max(closest, bound / plan.step_seconds);
      if (c.schedule.updates_on_host()) {
        closest_on_host = std::max(closest_on_host, bound / plan.step_seconds);
        ++on_host;
      }
      const CertificateProgram rows = certificate_program(certificate_input(job.p.input), group,
                                                          blocks, job.p.input.budgets, 1);
      std::multiset<std::string> names;
      for (const CertificateRow& row : rows.rows) names.insert(row.name);
      shared += shares(names);
    }
  }
  fmt::print("{} of 180 plans share something, the closest is at {:.4f} of its step\n", shared,
             closest);
  fmt::print("{} with updates on the host, the closest of them at {:.4f}\n", on_host,
             closest_on_host);
  EXPECT_GT(on_host, 20);
  EXPECT_GT(shared, 40);
  EXPECT_GT(closest, 0.9);
  for (int trial = 0; trial < 4; ++trial) {
    RandomJob job = RandomJob::make(rng);
    SCOPED_TRACE(job.text);
    const PlanReport report = job.p.plan(budget_of(job.p, 0.3));
    ASSERT_TRUE(report.fits);
    EXPECT_LE(report.bound_seconds, report.plan.step_seconds * (1 + 1e-6));
    const std::optional<QualityProof> proof = quality_proof(report, job.p.input);
    ASSERT_TRUE(proof);
    EXPECT_LE(check_quality(certificate_input(job.p.input), *proof, report.plan.step_seconds, "x"),
              report.plan.step_seconds);
  }
}

}  // namespace
}  // namespace spillway
