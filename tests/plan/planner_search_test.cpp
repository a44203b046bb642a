// The planner's search: the least device memory, a plan for every budget above it, and what is
// streamed and what recomputed.
// links: spillway_plan spillway_model
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>

#include "plan/search.h"
#include "tests/plan/planner_input.h"

namespace spillway {
namespace {

constexpr int64_t kPlenty = int64_t{1} << 60;

std::string gpt2(int layers, int hidden, const std::string& link, int batch, int micro_batch) {
  return fmt::format(
      R"({{"model": {{"family": "gpt2", "layers": {}, "hidden": {}, "heads": 4, "ffn": {},
          "context": 128, "tied_head": true}}, "data": {{"train": ["x.txt"], "validation": 0.1}},
          "train": {{"batch": {}, "micro_batch": {}, "eval_every": 10}},
          "hardware": {{"profile": "cpu", "link": "{}"}}}})",
      layers, hidden, 4 * hidden, batch, micro_batch, link);
}

std::string llama(int layers, const std::string& precision, int batch) {
  return fmt::format(
      R"({{"model": {{"family": "llama", "layers": {}, "hidden": 64, "heads": 4, "kv_heads": 2,
          "ffn": 176, "context": 64, "tied_head": false}}, "data": {{"train": ["x.txt"], "validation": 0.1}},
          "train": {{"batch": {}, "micro_batch": 4, "precision": "{}"}},
          "hardware": {{"profile": "cpu", "link": "2GB/s"}}}})",
      layers, batch, precision);
}

void expect_monotone(PlannerInput& p, size_t distinct) {
  const PlanReport resident = p.plan(kPlenty);
  ASSERT_TRUE(resident.fits);
  // Nothing moves; another order of the work may still be faster.
  EXPECT_GE(resident.plan.device.peak, resident.all_resident_device_bytes);
  EXPECT_LE(resident.plan.step_seconds, resident.all_resident_step_seconds);
  const int64_t least = resident.device_minimum_bytes, all = resident.all_resident_device_bytes;
  ASSERT_LT(least, all);
  std::set<std::map<PlaceKey, Where>> plans;
  double slowest = 1e300, bound = 1e300;
  constexpr int kBudgets = 10;
  // Fractions of layers are rounded anew at every budget.
  constexpr double kRoundingNoise = 1.01;
  for (int k = 0; k < kBudgets; ++k) {
    const int64_t budget = least + (all - least) * k / (kBudgets - 1);
    const PlanReport r = p.plan(budget);
    ASSERT_TRUE(r.fits) << budget;
    EXPECT_LE(r.plan.device.peak, budget);
    EXPECT_LE(r.plan.step_seconds, slowest * kRoundingNoise) << "with " << budget << " bytes";
    EXPECT_GE(r.plan.step_seconds, r.bound_seconds * (1 - 1e-9));
    // Of what fits, only more memory can lower the bound.
    EXPECT_LE(r.bound_seconds, bound * (1 + 1e-6));
    bound = r.bound_seconds;
    EXPECT_EQ(r.device_minimum_bytes, least);
    EXPECT_EQ(r.all_resident_device_bytes, all);
    slowest = std::min(slowest, r.plan.step_seconds);
    plans.insert(r.plan.placement.where);
  }
  EXPECT_LE(slowest, resident.all_resident_step_seconds);
  EXPECT_GE(plans.size(), distinct);
}

TEST(Planner, MoreMemoryIsNeverSlower) {
  PlannerInput accumulating(gpt2(6, 64, "1GB/s", 8, 2), {});
  expect_monotone(accumulating, 6);
  PlannerInput two_ranks(llama(6, "bf16", 16), {}, 2);
  expect_monotone(two_ranks, 6);
  PlannerInput no_recompute(llama(6, "f32", 4), {"recompute=off"});
  expect_monotone(no_recompute, 6);
  PlannerInput no_offload(llama(6, "f32", 4), {"offload=off"});
  expect_monotone(no_offload, 5);
}

TEST(Planner, VerdictAroundTheMinimum) {
  for (const char* precision : {"f32", "bf16"}) {
    PlannerInput p(llama(4, precision, 8), {});
    const int64_t least = p.plan(kPlenty).device_minimum_bytes;
    for (int k = -10; k < 10; ++k) {
      const int64_t budget = least + k * 997;
      const PlanReport r = p.plan(budget);
      EXPECT_EQ(r.fits, budget >= least) << budget;
      EXPECT_EQ(r.fits, r.plan.device.peak <= budget);
      if (!r.fits) {
        EXPECT_EQ(r.plan.device.peak, least);
      }
    }
    EXPECT_TRUE(p.plan(least).fits);
    EXPECT_FALSE(p.plan(least - 1).fits);
  }
}

TEST(Planner, HostBudgetCounts) {
  PlannerInput p(llama(4, "bf16", 8), {});
  const PlanReport resident = p.plan(kPlenty);
  const int64_t least = resident.device_minimum_bytes, host = resident.host_of_minimum_bytes;
  EXPECT_GT(host, p.input.staging_bytes);
  EXPECT_TRUE(p.plan(least, host).fits);
  EXPECT_FALSE(p.plan(least, host - 1).fits);
  // Less of the host than any streaming plan would take: only recomputation saves.
  const int64_t between = (least + resident.all_resident_device_bytes) / 2;
  int64_t used = 0;
  for (const int64_t budget : {host, host / 2, host / 4}) {
    const PlanReport r = p.plan(between, budget);
    if (!r.fits) continue;
    EXPECT_LE(r.plan.host.peak, budget);
    used = r.plan.host.peak;
  }
  EXPECT_GT(used, 0);
}

// Below all-resident there is a plan that only recomputes, down to some size, and it is never
// faster than the plan that may offload as well.
TEST(Planner, SaysWhatIsPossibleWithoutOffload) {
  PlannerInput p(llama(6, "bf16", 8), {});
  const PlanReport resident = p.plan(kPlenty);
  EXPECT_GE(resident.no_offload_device_bytes, resident.all_resident_device_bytes);
  EXPECT_LE(resident.no_offload_step_seconds, resident.all_resident_step_seconds);
  int found = 0, none = 0;
  const int64_t least = resident.device_minimum_bytes;
  for (int k = 0; k < 8; ++k) {
    const int64_t budget = least + (resident.all_resident_device_bytes - 1 - least) * k / 7;
    const PlanReport r = p.plan(budget);
    ASSERT_TRUE(r.fits);
    if (r.no_offload_device_bytes == 0) {
      ++none;
      continue;
    }
    ++found;
    EXPECT_LE(r.no_offload_device_bytes, budget);
    EXPECT_GE(r.no_offload_step_seconds, r.plan.step_seconds);
    EXPECT_GE(r.no_offload_step_seconds, resident.no_offload_step_seconds);
  }
  EXPECT_GE(found, 1);
  EXPECT_GE(none, 1);
}

TEST(Planner, IsDeterministic) {
  PlannerInput a(llama(4, "bf16", 8), {}), b(llama(4, "bf16", 8), {});
  const PlanReport all = a.plan(kPlenty);
  const int64_t budget = (all.device_minimum_bytes + all.all_resident_device_bytes) / 2;
  const PlanReport x = a.plan(budget), y = b.plan(budget);
  EXPECT_EQ(x.plan.placement.where, y.plan.placement.where);
  EXPECT_EQ(x.plan.placement.slots, y.plan.placement.slots);
  EXPECT_EQ(program_hash(x.plan.lowered.set, x.plan.layout),
            program_hash(y.plan.lowered.set, y.plan.layout));
}

// The memory that a plan would use is known without making it, class by class.
TEST(Planner, MemoryIsKnownWithoutAProgram) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 rng(seed);
  for (int trial = 0; trial < 20; ++trial) {
    PlannerInput p(rng() % 2 ? gpt2(2, 64, "2GB/s", 4, 2) : llama(2, "bf16", 4), {});
    p.input.saves = rng() % 4 > 0;
    p.input.snapshots = rng() % 2;
    p.input.checks = rng() % 2;
    p.input.budgets.host = rng() % 2 ? int64_t{1} << 60 : 1 << 20;
    ScheduleChoice choice;
    const std::vector<int32_t> groups = group_choices(p.train.spec());
    choice.group = groups[rng() % groups.size()];
    if (rng() % 2)
      for (int layer = 0; layer < 4; ++layer)
        choice.update.push_back(rng() % 2 ? UpdatePosition::rotated : UpdatePosition::end);
    Placement placement;
    for (const PlaceUnit& unit : place_units(p.train.get(choice))) {
      placement.where[unit.key] = static_cast<Where>(rng() % (unit.recomputable ? 3 : 2));
      placement.slots[unit.key.first] = 1 + rng() % 3;
    }
    const Plan plan = evaluate_placement(p.input, placement, choice);
    const MemoryUse use = memory_of(p.input, placement, choice);
    EXPECT_EQ(use.device.peak, plan.device.peak);
    EXPECT_EQ(use.host.peak, plan.host.peak);
    EXPECT_EQ(use.device.by_class, plan.device.by_class);
    EXPECT_EQ(use.host.by_class, plan.host.by_class);
  }
}

// Placements of all units of a two-layer model, most with uniform blocks, others drawn at random:
// none needs less than the search found, but for the slot of a ring that it might have spared.
TEST(Planner, NoPlacementFarBelowTheMinimum) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  std::mt19937_64 rng(seed);
  for (const bool is_gpt2 : {false, true}) {
    PlannerInput p(is_gpt2 ? gpt2(2, 64, "2GB/s", 4, 2) : llama(2, "bf16", 4), {});
    const PlanReport r = p.plan(0);
    int64_t slot = 0;
    for (const Buffer& b : r.plan.lowered.set.buffers)
      if (b.name.starts_with("ring ")) slot = std::max(slot, b.bytes);
    std::vector<PlaceUnit> units = place_units(p.train.get({}));
    Candidate c{r.plan.placement, {0}};
    const auto try_it = [&] {
      const Peaks peaks = peaks_of(p.input, c);
      EXPECT_GE(peaks.device, r.device_minimum_bytes - slot);
      return peaks.device;
    };
    int64_t best = r.device_minimum_bytes;
    const SearchSpace space = search_space(p.input);
    // Every choice of every two groups, the others as in the minimum.
    int tried = 0;
    for (size_t g = 0; g < space.groups.size(); ++g)
      for (size_t h = 0; h < g; ++h)
        for (const Where x : space.groups[g].choices)
          for (const Where y : space.groups[h].choices) {
            c.placement = r.plan.placement;
            for (const PlaceUnit& unit : space.groups[g].units) c.placement.where[unit.key] = x;
            for (const PlaceUnit& unit : space.groups[h].units) c.placement.where[unit.key] = y;
            best = std::min(best, try_it());
            ++tried;
          }
    // Anything at all, unit by unit; half of them near the minimum.
    for (int trial = 0; trial < 3000; ++trial, ++tried) {
      c.placement = r.plan.placement;
      for (const PlaceUnit& unit : units)
        if (trial % 2 == 0 || rng() % 6 == 0)
          c.placement.where[unit.key] = static_cast<Where>(rng() % (unit.recomputable ? 3 : 2));
      best = std::min(best, try_it());
    }
    std::printf("%d placements: least %ld, the search found %ld, largest slot %ld\n", tried,
                static_cast<long>(best), static_cast<long>(r.device_minimum_bytes),
                static_cast<long>(slot));
  }
}

// Where ranks sum every few micro-batches and gradients are sharded, the order of the work decides
// how much memory is needed at least: a layer's partial sums are as large as all of its gradients.
TEST(Planner, TheMinimumIsOverOrdersOfWork) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 rng(seed);
  for (const char* offload : {"off", "auto"}) {
    PlannerInput p(llama(3, "bf16", 16),
                   {"parallel.zero=3", "parallel.reduce_every=4", "train.micro_batch=1",
                    std::string("offload=") + offload},
                   2);
    const PlanReport r = p.plan(0);
    EXPECT_TRUE(p.plan(r.device_minimum_bytes).fits);
    int64_t slot = 0;
    for (const Buffer& b : r.plan.lowered.set.buffers)
      if (b.name.starts_with("ring ")) slot = std::max(slot, b.bytes);
    ASSERT_GE(group_choices(p.train.spec()).size(), 3u);
    std::map<int32_t, int64_t> least;
    for (const int32_t group : group_choices(p.train.spec())) {
      const SearchSpace space =
          search_space(p.input, {.reduce_delay = 0, .gather_ahead = 0, .group = group});
      least[group] = peaks_of(p.input, least_device_memory(space)).device;
      for (int trial = 0; trial < 200; ++trial) {
        Candidate c{space.base, space.choice};
        for (const Group& g : space.groups)
          for (const PlaceUnit& unit : g.units)
            c.placement.where[unit.key] = g.choices[rng() % g.choices.size()];
        least[group] = std::min(least[group], peaks_of(p.input, c).device);
      }
      EXPECT_GE(least[group], r.device_minimum_bytes - slot) << group << " " << offload;
    }
    if (std::string(offload) == "off") {
      EXPECT_LT(least[4], least[1]);
    }
  }
}

std::string pin_of(const PlaceKey& key, int32_t layers) {
  const std::string where = key.second == 0       ? "embed"
                            : key.second > layers ? "head"
                                                  : std::to_string(key.second - 1);
  return key.first + "@" + where;
}

// Exhaustive: all units but some, drawn at random, are pinned to random places; of the others every
// placement is tried, with one slot a ring. None needs less than the search found under those pins,
// but for the slot of a ring that it might have spared.
TEST(Planner, NoPlacementOfTheFreeUnitsBelowTheMinimum) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  std::mt19937_64 rng(seed);
  size_t tried = 0, exact = 0;
  constexpr int kInstances = 16;
  for (int instance = 0; instance < kInstances; ++instance) {
    const int layers = 1 + instance % 2;
    PlannerInput p(instance % 4 < 2 ? gpt2(layers, 64, "2GB/s", 4, 2) : llama(layers, "bf16", 8),
                   {}, instance % 3 == 0 ? 2 : 1);
    std::vector<PlaceUnit> units = place_units(p.train.get({}));
    std::shuffle(units.begin(), units.end(), rng);
    size_t free = 0, placements = 1;
    for (; free < units.size(); ++free) {
      const size_t choices = units[free].recomputable ? 3 : 2;
      if (placements * choices > 1500) break;
      placements *= choices;
    }
    for (size_t u = free; u < units.size(); ++u) {
      const size_t where = rng() % (units[u].recomputable ? 3 : 2);
      const char* names[] = {"device", "host", "recompute"};
      p.input.pins.emplace_back(pin_of(units[u].key, layers), names[where]);
    }
    const PlanReport r = p.plan(0);
    Candidate c{r.plan.placement, {p.train.spec().ranks > 1 ? 0 : 1}};
    int64_t best = std::numeric_limits<int64_t>::max();
    for (size_t index = 0; index < placements; ++index) {
      size_t digits = index;
      for (size_t u = 0; u < free; ++u) {
        const size_t choices = units[u].recomputable ? 3 : 2;
        c.placement.where[units[u].key] = static_cast<Where>(digits % choices);
        digits /= choices;
      }
      best = std::min(best, peaks_of(p.input, c).device);
    }
    int64_t slot = 0;
    for (const Buffer& b : r.plan.lowered.set.buffers)
      if (b.name.starts_with("ring ")) slot = std::max(slot, b.bytes);
    EXPECT_GE(best, r.device_minimum_bytes - slot);
    tried += placements;
    exact += best == r.device_minimum_bytes;
  }
  std::printf("%zu placements of %d instances: the search found the least of %zu\n", tried,
              kInstances, exact);
}

// Recomputing an f32 GEMM's output costs K / 2 FLOPs a byte: at 280 GFLOP/s and K = 512 that is
// 0.9 ns, between the link's 4 ns a byte at 0.25 GB/s and 0.125 ns at 8 GB/s.
TEST(Planner, LinkTurnsRecomputeIntoOffload) {
  std::map<std::string, std::map<Where, int>> counts[2];
  double seconds[2];
  const auto model = [](bool fast) { return gpt2(6, 512, fast ? "8GB/s" : "0.25GB/s", 16, 16); };
  for (const int fast : {0, 1}) {
    PlannerInput p(model(fast), {});
    const double flops = p.input.profile.peak_f32 * p.input.profile.gemm_fraction;
    const double threshold = flops / p.input.profile.h2d_bandwidth;  // FLOPs a byte
    EXPECT_EQ(512 / 2.0 > threshold, fast == 1) << threshold;
    const PlanReport all = p.plan(kPlenty);
    const int64_t saved = all.all_resident_device_bytes - all.device_minimum_bytes;
    const int64_t budget = all.device_minimum_bytes + saved * 4 / 10;
    const PlanReport r = p.plan(budget);
    ASSERT_TRUE(r.fits);
    seconds[fast] = r.plan.step_seconds;
    // What pins force upon all layers is among what is searched.
    for (const char* where : {"recompute", "host"}) {
      PlannerInput pinned(model(fast),
                          {fmt::format(R"(place={{"qkv":"{0}","ffn_up":"{0}"}})", where)});
      if (const PlanReport u = pinned.plan(budget); u.fits) {
        EXPECT_LE(r.plan.step_seconds, u.plan.step_seconds * 1.001) << where << " " << fast;
      }
    }
    for (const auto& [key, where] : r.plan.placement.where) ++counts[fast][key.first][where];
  }
  for (const char* name : {"ffn_up", "qkv"}) {
    EXPECT_GE(counts[0][name][Where::recompute], 3) << name;
    // What the slow link has time for is streamed for nothing.
    EXPECT_LE(counts[0][name][Where::host], counts[0][name][Where::recompute]) << name;
    EXPECT_EQ(counts[1][name][Where::recompute], 0) << name;
    EXPECT_GE(counts[1][name][Where::host], 3) << name;
  }
  EXPECT_LT(seconds[1], seconds[0]);
}

}  // namespace
}  // namespace spillway
