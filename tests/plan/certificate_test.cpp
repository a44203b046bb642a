// The verifier's linear programs against the planner's, certificates altered by hand, and bounds
// against every placement of small models.
// links: spillway_train
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

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
      const BoundLp planner = bound_lp(model, p.input.profile, p.input.budgets, horizon,
                                       p.input.offload == Mode::automatic);
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

}  // namespace
}  // namespace spillway
