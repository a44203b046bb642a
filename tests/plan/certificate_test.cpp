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
};

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

TEST(Certificate, RowsAndBoundsAreThePlanners) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.label);
    PlannerInput p(c.model, c.set, c.ranks);
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

}  // namespace
}  // namespace spillway
