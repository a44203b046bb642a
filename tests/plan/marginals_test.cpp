// What more of a resource is worth, by multipliers and by planning again, and the fastest plan at
// each size of device memory.
// links: spillway_plan spillway_model
#include "plan/marginals.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "plan/pareto.h"
#include "tests/plan/planner_input.h"

namespace spillway {
namespace {

constexpr int64_t kPlenty = int64_t{1} << 60;

std::string llama(const std::string& link, int zero) {
  return fmt::format(
      R"({{"model": {{"family": "llama", "layers": 4, "hidden": 64, "heads": 4, "kv_heads": 2,
          "ffn": 176, "context": 64, "tied_head": false}}, "data": {{"train": ["x.txt"], "validation": 0.1}},
          "train": {{"batch": 8, "micro_batch": 2, "precision": "bf16"}},
          "parallel": {{"zero": {}}},
          "hardware": {{"profile": "cpu", "link": "{}"}}}})",
      zero, link);
}

// A budget between the minimum and all resident.
int64_t between(PlannerInput& p, double part) {
  const PlanReport r = p.plan(kPlenty);
  const auto room = static_cast<double>(r.all_resident_device_bytes - r.device_minimum_bytes);
  return r.device_minimum_bytes + static_cast<int64_t>(part * room);
}

// No amount of memory lowers the bound by more than the multipliers say, and a little of anything
// lowers it by that much.
TEST(Marginals, MultipliersAreTheBoundsRatesOfChange) {
  int worth = 0;
  for (const auto& [part, link] : {std::pair{0.15, "0.3GB/s"}, std::pair{0.5, "1GB/s"}}) {
    PlannerInput p(llama(link, 2), {}, 2);
    const PlanReport report = p.plan(between(p, part));
    ASSERT_TRUE(report.fits);
    for (const Marginal& m : marginal_values(p.input, report, false)) {
      const std::string what = fmt::format("{} at {}", static_cast<int>(m.resource), link);
      const double noise = 1e-6 * report.bound_seconds;
      if (m.resource == Resource::device_memory || m.resource == Resource::host_memory) {
        EXPECT_LE(report.bound_seconds - m.bound_seconds, m.dual_seconds + noise) << what;
      }
      EXPECT_GE(m.dual_seconds, 0) << what;
      EXPECT_GE(m.replanned_seconds, 0) << what;
      EXPECT_LE(m.step_seconds, report.plan.step_seconds) << what;
      EXPECT_GE(m.step_seconds, m.bound_seconds * (1 - 1e-9)) << what;
      if (m.dual_seconds < 1e-3 * report.bound_seconds) continue;
      ++worth;
      constexpr double kLittle = 1.0 / 256;  // rates change soon
      const PlanReport more = make_plan(with_more(p.input, m.resource, kLittle * m.amount));
      const double saved = report.bound_seconds - more.bound_seconds;
      EXPECT_NEAR(saved, kLittle * m.dual_seconds, 0.1 * kLittle * m.dual_seconds + noise) << what;
    }
  }
  EXPECT_GE(worth, 3);  // of memory and of the link
}

TEST(Marginals, NameWhatPlansUse) {
  PlannerInput one(llama("1GB/s", 1), {}), two(llama("1GB/s", 1), {}, 2);
  const auto resources = [](PlannerInput& p, bool several_nodes) {
    std::vector<Resource> found;
    for (const Marginal& m : marginal_values(p.input, p.plan(between(p, 0.5)), several_nodes)) {
      EXPECT_GT(m.amount, 0);
      found.push_back(m.resource);
    }
    return found;
  };
  using enum Resource;
  EXPECT_EQ(resources(one, false), (std::vector<Resource>{device_memory, host_memory, link}));
  EXPECT_EQ(resources(two, false),
            (std::vector<Resource>{device_memory, host_memory, link, peers}));
  EXPECT_EQ(resources(two, true),
            (std::vector<Resource>{device_memory, host_memory, link, peers, network}));
  EXPECT_TRUE(marginal_values(one.input, one.plan(1), false).empty());
}

TEST(Pareto, MoreMemoryIsNeverSlower) {
  constexpr int kSizes = 5;
  for (const char* link : {"0.3GB/s", "2GB/s"}) {
    PlannerInput p(llama(link, 1), {});
    const PlanReport report = p.plan(between(p, 0.4));
    const ParetoTable table = pareto_table(p.input, report, kSizes);
    ASSERT_EQ(table.rows.size(), kSizes);
    EXPECT_EQ(table.rows.front().device_budget, report.device_minimum_bytes);
    EXPECT_EQ(table.rows.back().device_budget, report.all_resident_device_bytes);
    for (size_t i = 0; i < table.rows.size(); ++i) {
      const ParetoRow& row = table.rows[i];
      ASSERT_TRUE(row.fits);
      EXPECT_LE(row.plan.device_bytes, row.device_budget);
      EXPECT_LE(row.plan.host_bytes, p.input.budgets.host);
      EXPECT_GE(row.plan.step_seconds, row.bound_seconds * (1 - 1e-9));
      if (i > 0) {
        EXPECT_GT(row.device_budget, table.rows[i - 1].device_budget);
        EXPECT_LE(row.plan.step_seconds, table.rows[i - 1].plan.step_seconds);
        EXPECT_LE(row.bound_seconds, table.rows[i - 1].bound_seconds * (1 + 1e-6));
      }
      if (row.device_budget >= report.plan.device.peak) {
        EXPECT_LE(row.plan.step_seconds, report.plan.step_seconds);
      }
    }
    EXPECT_EQ(table.all_resident.device_bytes, report.all_resident_device_bytes);
    EXPECT_EQ(table.all_resident.step_seconds, report.all_resident_step_seconds);
    EXPECT_EQ(table.all_resident.streamed + table.all_resident.recomputed, 0);
    EXPECT_EQ(table.full_recompute.streamed, 0);
    EXPECT_GT(table.full_recompute.recomputed, 0);
    EXPECT_LT(table.full_recompute.device_bytes, table.all_resident.device_bytes);
    EXPECT_GT(table.full_recompute.step_seconds, table.all_resident.step_seconds);
  }
}

TEST(Pareto, PinsAndHostMemoryHold) {
  PlannerInput p(llama("1GB/s", 1), {"place={\"moments\": \"host\", \"qkv@0\": \"device\"}"});
  const PlanReport report = p.plan(kPlenty);
  const ParetoTable table = pareto_table(p.input, report, 3);
  EXPECT_EQ(table.all_resident.streamed, 4 + 2);  // moments of every layer
  EXPECT_EQ(table.full_recompute.streamed, 4 + 2);
  for (const ParetoRow& row : table.rows) EXPECT_GE(row.plan.streamed, 4 + 2);
  // Without room on the host nothing fits.
  p.input.budgets = {kPlenty, 1};
  for (const ParetoRow& row : pareto_table(p.input, make_plan(p.input), 2).rows)
    EXPECT_FALSE(row.fits);
}

}  // namespace
}  // namespace spillway
