// Eight devices whose links share switch uplinks are planned for otherwise than eight with links of
// their own, and the simulator says what a plan that knows nothing of the sharing would lose.
// links: spillway_plan spillway_model spillway_verify
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "plan/search.h"
#include "tests/plan/planner_input.h"
#include "verify/verify.h"

namespace spillway {
namespace {

constexpr int kDevices = 8;
constexpr int64_t kPlenty = int64_t{1} << 60;

// Every device has a link of the same rate; `behind_a_switch` of them share an uplink of one link's
// rate.
HardwareProfile node_of_eight(HardwareProfile profile, int behind_a_switch) {
  constexpr double kLink = 25e9;
  set_link(profile, kLink);
  profile.devices_per_node = kDevices;
  profile.devices_per_uplink = behind_a_switch;
  profile.uplink_bandwidth = kLink;
  profile.host_bandwidth = 4 * kDevices * kLink;
  return profile;
}

struct Streamed {
  int host = 0, recomputed = 0;  // units
};
Streamed count(const Placement& placement) {
  Streamed n;
  for (const auto& [key, where] : placement.where) {
    n.host += where == Where::host;
    n.recomputed += where == Where::recompute;
  }
  return n;
}

void expect_verified(const Plan& plan, const Budgets& budgets) {
  Limits limits;
  limits.tier_bytes[static_cast<int>(Tier::device)] = budgets.device;
  limits.tier_bytes[static_cast<int>(Tier::host)] = budgets.host;
  for (const Finding& f : verify(plan.lowered.set, plan.layout, limits))
    ADD_FAILURE() << describe(f);
}

TEST(Contention, SharedUplinksGetAnotherPlan) {
  for (const char* family : {"gpt2", "llama"})
    for (const int behind_a_switch : {4, 8}) {
      SCOPED_TRACE(fmt::format("{}, {} behind a switch", family, behind_a_switch));
      PlannerInput p(fmt::format(
                         R"({{"model": {{"family": "{}", "layers": 12, "hidden": 1024, "heads": 16,
                  "ffn": 4096, "context": 1024}}, "data": {{"train": ["x.txt"]}},
                  "train": {{"batch": 64, "micro_batch": 8, "precision": "bf16"}},
                  "hardware": {{"profile": "a100-40"}}}})",
                         family),
                     {}, kDevices);
      const HardwareProfile own = node_of_eight(p.input.profile, 1);
      const HardwareProfile shared = node_of_eight(p.input.profile, behind_a_switch);
      p.input.profile = own;
      const SearchSpace space = search_space(p.input);
      const int64_t least = peaks_of(p.input, least_device_memory(space)).device;
      const int64_t all = peaks_of(p.input, {space.base, {}}).device;
      const Budgets budgets{least + (all - least) * 3 / 10, kPlenty};
      const PlanReport naive = p.plan(budgets.device, budgets.host);
      p.input.profile = shared;
      const PlanReport aware = p.plan(budgets.device, budgets.host);
      ASSERT_TRUE(naive.fits && aware.fits);
      // The plan for links of their own, where they are shared: the same bytes in other times.
      const Plan surprised = evaluate_placement(p.input, naive.plan.placement, naive.plan.schedule);
      EXPECT_EQ(surprised.device.peak, naive.plan.device.peak);
      const Streamed before = count(naive.plan.placement), after = count(aware.plan.placement);
      fmt::print(
          "{}, {} devices on an uplink: the plan for links of their own ({} units on the host, {} "
          "recomputed) takes {:.3f} ms there and {:.3f} ms here; the plan for shared ones ({}, {}) "
          "{:.3f} ms\n",
          family, behind_a_switch, before.host, before.recomputed, 1e3 * naive.plan.step_seconds,
          1e3 * surprised.step_seconds, after.host, after.recomputed,
          1e3 * aware.plan.step_seconds);
      EXPECT_NE(naive.plan.placement.where, aware.plan.placement.where);
      EXPECT_LT(after.host, before.host);
      EXPECT_GT(surprised.step_seconds, 1.1 * aware.plan.step_seconds);
      EXPECT_GE(aware.plan.step_seconds, naive.plan.step_seconds);
      EXPECT_GE(aware.plan.step_seconds, aware.bound_seconds);
      expect_verified(naive.plan, budgets);
      expect_verified(aware.plan, budgets);
    }
}

// One rank alone on the node has the uplink for itself.
TEST(Contention, NothingIsSharedByOneDevice) {
  PlannerInput p(
      R"({"model": {"family": "gpt2", "layers": 4, "hidden": 256, "heads": 4, "ffn": 1024,
          "context": 256}, "data": {"train": ["x.txt"]},
          "train": {"batch": 8, "micro_batch": 8, "precision": "bf16"},
          "hardware": {"profile": "a100-40"}})",
      {});
  const HardwareProfile profile = p.input.profile;
  double seconds[2];
  for (const int shared : {0, 1}) {
    p.input.profile = node_of_eight(profile, shared == 0 ? 1 : kDevices);
    Placement placement;
    for (const PlaceUnit& unit : place_units(p.train.get({})))
      placement.where[unit.key] = Where::host;
    seconds[shared] = evaluate_placement(p.input, placement, {}).step_seconds;
  }
  EXPECT_EQ(seconds[0], seconds[1]);
}

}  // namespace
}  // namespace spillway
