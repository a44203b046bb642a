// The thresholds of the design's laws against the simulator: plans are pinned, lowered and timed on
// a machine where nothing but GEMMs, and the transfers in question, takes time.
//
// F: FLOP/s, B: bytes a second each way, P parameters (p of a block), N ranks, T: tokens of a group
// of micro-batches on all ranks. A block's forward pass takes 2pT / NF, its backward pass twice
// that. What a law says vanishes is measured in transfers of one block's bytes: below the threshold
// each of the L blocks is waited for, above it only what has no work beside it, at the ends of the
// step or pass: one or two of them. Preconditions of every law are therefore many blocks, a
// vocabulary that is small beside one of them, and rings of two slots.
// links: spillway_plan spillway_model
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "plan/search.h"
#include "tests/plan/planner_input.h"

namespace spillway {
namespace {

constexpr double kFlops = 1e14;  // F
constexpr double kFree = 1e18;   // bytes a second of what is not looked at
constexpr int kLayers = 64, kContext = 32, kSequences = 64;
constexpr double kTokens = kSequences * kContext;  // of a micro-batch on one rank

// Efficiency does not depend on sizes, starting takes next to nothing.
HardwareProfile simple_profile(double link, double network = kFree) {
  HardwareProfile p;
  p.name = "simple";
  p.kind = "cuda";
  p.peak_bf16 = p.peak_f32 = kFlops;
  p.gemm_fraction = p.attention_fraction = p.attention_backward_fraction = 1;
  p.memory_bandwidth = kFree;
  p.launch_seconds = p.copy_seconds = p.exchange_seconds = 1e-10;
  set_link(p, link);
  p.uplink_bandwidth = p.host_bandwidth = p.cpu_update_bandwidth = 10 * kFree;
  p.intra_node_bandwidth = kFree;
  p.network_bandwidth = network;
  return p;
}

struct Shape {
  int hidden = 512, micro_batches = 1, group = 1, ranks = 1;
  const char* precision = "bf16";
  std::vector<std::string> set = {};
  bool rotated = false;
};

// One step under pins; ranks are in nodes of their own.
class Step {
 public:
  using Pins = std::vector<std::pair<std::string, std::string>>;

  Step(const Shape& shape, const Pins& pins, int slots = 2)
      : p_(fmt::format(
               R"({{"model": {{"family": "gpt2", "layers": {}, "hidden": {}, "heads": 8, "ffn": {},
                   "context": {}, "vocab": 257, "tied_head": false}}, "data": {{"train": ["x.txt"]}},
                   "train": {{"batch": {}, "micro_batch": {}, "precision": "{}"}},
                   "parallel": {{"tree": 1}}, "hardware": {{"profile": "cpu"}}}})",
               kLayers, shape.hidden, 4 * shape.hidden, kContext,
               kSequences * shape.micro_batches * shape.ranks, kSequences, shape.precision),
           shape.set, shape.ranks) {
    p_.input.profile = simple_profile(kFree);
    p_.input.rules = workspace_rules(p_.input.profile, 2);
    p_.input.ranks_on_node = 1;
    p_.input.pins = pins;
    if (shape.rotated) p_.input.pins.emplace_back("update", "rotated");
    Placement placement = placement_of_pins(p_.input);
    for (const auto& [key, where] : placement.where) placement.slots[key.first] = slots;
    placement_ = placement;
    choice_ = schedule_of_pins(p_.input, {.group = shape.group});
    simulated(kFree);
  }

  Simulation simulated(double link, double network = kFree) {
    p_.input.profile = simple_profile(link, network);  // the order of copies is for it
    plan_ = evaluate_placement(p_.input, placement_, choice_);
    return simulate(plan_.lowered.set, 0, machine_of(p_.input));
  }

  // Bytes on the host of block `layer`.
  double block_bytes(int32_t layer = 1) const {
    double bytes = 0;
    for (const PlaceUnit& unit : place_units(p_.train.get(plan_.schedule)))
      if (unit.key.second == layer && plan_.placement.where.at(unit.key) == Where::host)
        bytes += static_cast<double>(unit.bytes);
    return bytes;
  }

  // Waits for copies, in copies of a block's bytes.
  double blocks_exposed(double link, int32_t layer = 1) {
    return copies_of(simulated(link).exposed) * link / block_bytes(layer);
  }

 private:
  PlannerInput p_;
  Placement placement_;
  ScheduleChoice choice_;
  Plan plan_;
};

// The rate at which `falling` comes down to `level`; 0: none within a factor of four of `expected`.
double crossing(double expected, double level, const std::function<double(double)>& falling) {
  double low = expected / 4, high = expected * 4;
  if (falling(low) <= level || falling(high) > level) return 0;
  for (int k = 0; k < 30; ++k) {
    const double middle = std::sqrt(low * high);
    (falling(middle) > level ? low : high) = middle;
  }
  return std::sqrt(low * high);
}

// The rate at which nothing but ends is exposed, found where half a block more is; `exposed` is in
// blocks. What a rate a quarter above the law's still exposes are the ends.
double threshold(double expected, const std::function<double(double)>& exposed) {
  const double ends = exposed(1.25 * expected);
  EXPECT_LE(ends, 2);
  return crossing(expected, ends + 0.5, exposed);
}

const Step::Pins kStates = {{"moments", "host"}, {"master", "host"}};
// A rotated update stands before its block's forward pass: the block's 12p / N bytes come in, and
// leave afterwards, along the forward passes of the group that begins the step,
//   12p / NB ≤ 2pT / NF, so T ≥ 6 F/B,
// with or without clipping, and whatever part of the step that group is. The first block's fetch
// has nothing beside it. The design's 4 F/B has a third of the states fetched before the step
// begins, 2/3 · 12p / NB ≤ 2pT / NF, along the last backward pass of the step before, in memory
// that activations have left; its 2 F/B has 12p / NB ≤ 6pT / NF. But a program is one step, which
// begins with its forward pass, and across steps a ring of two slots could take in two blocks
// early, not a third of them.
TEST(Laws, RotatedStatesHideBehindAForwardPass) {
  struct Case {
    int ranks, micro_batches, group;
    const char* clip;
  };
  for (const Case& c : {Case{1, 1, 1, "1"}, Case{1, 4, 1, "1"}, Case{1, 4, 4, "1"},
                        Case{1, 4, 4, "0"}, Case{4, 1, 1, "0"}, Case{4, 4, 4, "1"}}) {
    Step step({.micro_batches = c.micro_batches,
               .group = c.group,
               .ranks = c.ranks,
               .set = {"parallel.zero=1", std::string("optimizer.clip=") + c.clip},
               .rotated = true},
              kStates);
    const double tokens = kTokens * c.group * c.ranks;
    const double link =
        threshold(6 * kFlops / tokens, [&](double rate) { return step.blocks_exposed(rate); });
    const double law = tokens * link / kFlops;
    fmt::print("rotated, {} ranks, groups of {} of {}, clip {}: {:.3f} F/B\n", c.ranks, c.group,
               c.micro_batches, c.clip, law);
    EXPECT_NEAR(law, 6, 0.15 * 6);
    EXPECT_NEAR(step.blocks_exposed(1.2 * link), 1, 0.15);  // the first block's fetch
    // Half of what would be needed, and half of the blocks are waited for.
    EXPECT_NEAR(step.blocks_exposed(link / 2), kLayers / 2.0, 0.15 * kLayers);
  }
}

// Copies are cut, and each piece of a block's fetch follows the piece of the block before that
// leaves its place: one slot hides as much as two.
TEST(Laws, OneSlotHidesAsMuch) {
  Step step({.rotated = true}, kStates, 1);
  const double link =
      crossing(6 * kFlops / kTokens, 1.5, [&](double rate) { return step.blocks_exposed(rate); });
  const double law = kTokens * link / kFlops;
  fmt::print("rotated, rings of one slot: {:.3f} F/B\n", law);
  EXPECT_NEAR(law, 6, 0.15 * 6);
}

// An update at the end waits for the sum of all squares, with or without clipping: a value that is
// not finite, in any layer, skips the update of every layer. So no state is written before the last
// gradient is there, and 12P / N bytes go home after it: that takes 12P / NB, however many tokens
// there are. Fetches run beside, two blocks ahead. The design's 3 F/B, 12p / NB ≤ 4pT / NF, has
// block l updated along the backward pass of block l - 1; no schedule does that.
TEST(Laws, StatesOfUpdatesAtTheEndHideNowhere) {
  for (const int ranks : {1, 4})
    for (const char* clip : {"0", "1"})
      for (const int micro_batches : {1, 4}) {
        Step step({.micro_batches = micro_batches,
                   .group = micro_batches,
                   .ranks = ranks,
                   .set = {"parallel.zero=1", std::string("optimizer.clip=") + clip}},
                  kStates);
        const double tokens = kTokens * micro_batches * ranks;
        for (const double law : {2, 3, 6, 100}) {
          const double exposed = step.blocks_exposed(law * kFlops / tokens);
          EXPECT_NEAR(exposed, kLayers, 0.15 * kLayers) << law << " F/B";
        }
      }
}

// Activations of a block leave along the next blocks' forward passes, t_F each, and return along
// backward passes of twice that: the fraction B t_F / bytes hides. A block's GEMMs are 24 h² FLOPs
// a token: of c h bytes a token that is 24 h B / c F.
TEST(Laws, ActivationsHideBehindAForwardPass) {
  struct Case {
    std::vector<std::string> names;
    double c;           // bytes a token and h
    bool every_second;  // block only
    const char* precision;
  };
  const std::vector<std::string> all = {"attn_norm", "qkv",    "attn_out", "resid",
                                        "ffn_norm",  "ffn_up", "ffn_act",  "ffn_resid"};
  for (const Case& c :
       {Case{{"ffn_up"}, 8, false, "bf16"}, Case{{"ffn_up", "ffn_act"}, 16, false, "bf16"},
        Case{{"ffn_up", "ffn_act"}, 16, true, "bf16"},
        Case{{"attn_norm", "qkv", "attn_out"}, 10, false, "bf16"}, Case{all, 32, false, "bf16"},
        Case{all, 32, true, "bf16"}, Case{all, 64, false, "f32"}})
    for (const auto& [micro_batches, group] : {std::pair(1, 1), {3, 1}, {3, 3}}) {
      const Shape shape{.micro_batches = micro_batches, .group = group, .precision = c.precision};
      std::string blocks = fmt::format("@0-{}", kLayers - 1);
      if (c.every_second) {
        blocks = "@1";
        for (int layer = 3; layer < kLayers; layer += 2) blocks += fmt::format(",{}", layer);
      }
      Step::Pins pins;
      for (const std::string& name : c.names) pins.emplace_back(name + blocks, "host");
      Step step(shape, pins, 2 * group);
      const double passes = static_cast<double>(micro_batches) / group;  // each has its ends
      const double part = c.every_second ? 0.5 : 1;
      const double bytes = step.block_bytes(2);
      const double forward = 24.0 * shape.hidden * shape.hidden * kTokens * group / kFlops;  // t_F
      const double expected = part * bytes / forward;
      const double link =
          threshold(expected, [&](double rate) { return step.blocks_exposed(rate, 2) / passes; });
      fmt::print("activations of {} h bytes, {}, {}, groups of {} of {}: {:.3f} hides\n", c.c,
                 c.precision, c.every_second ? "every second block" : "every block", group,
                 micro_batches, link * forward / bytes);
      EXPECT_NEAR(link, expected, 0.05 * expected);
      // The same in closed form.
      const double fraction = 24.0 * shape.hidden * link / (c.c * kFlops);
      EXPECT_NEAR(fraction, part, 0.05 * part);
    }
}

// The 2p bytes of a block's parameters, less a rank's own part of them, are gathered once a group,
// one block ahead, for each pass: 2p (N - 1) / N / B ≤ 2pt / F where t are a rank's tokens in the
// group, so t ≥ F / B_net with B_net = B N / (N - 1). That is of groups that sum nothing over
// ranks: what two steps take that differ in such groups alone.
TEST(Laws, GathersHideBehindAForwardPass) {
  for (const int ranks : {2, 8})
    for (const int group : {1, 2}) {
      const auto step_of = [&](int groups) {
        return Step({.micro_batches = groups * group,
                     .group = group,
                     .ranks = ranks,
                     .set = {"parallel.zero=3"}},
                    {});
      };
      constexpr int kFew = 3, kMany = 7;
      Step few = step_of(kFew), many = step_of(kMany);
      const double parts = static_cast<double>(ranks - 1) / ranks;
      const double parameters = 12.0 * 512 * 512;
      const double expected = kFlops / (kTokens * group) * parts;  // bytes a second on the wire
      const auto exposed = [&](double rate) {
        const double seconds =
            many.simulated(kFree, rate).of(Lane::comm) - few.simulated(kFree, rate).of(Lane::comm);
        return seconds / (kMany - kFew) * rate / (2 * parameters * parts);
      };
      const double rate = threshold(expected, exposed);
      fmt::print("gathers, {} ranks, groups of {}: {:.3f} F/B_net\n", ranks, group,
                 kTokens * group * rate / parts / kFlops);
      EXPECT_NEAR(rate, expected, 0.05 * expected);
      EXPECT_NEAR(exposed(2 * rate), 0, 0.15);
      EXPECT_NEAR(exposed(rate / 2), kLayers / 2.0, 0.15 * kLayers);
    }
}

// A GEMM of inner size K costs 2 K FLOPs an element to repeat, K a byte in bf16, K / 2 in f32. On a
// link that is busy all along the forward passes, and not all along the backward passes, the byte
// costs 1 / B to stream: offload wins where K (or K / 2) exceeds F/B. Both plans stream all else;
// the last blocks, whose activations return at once, are alike in both.
TEST(Laws, OffloadWinsWhereRecomputingAByteTakesLonger) {
  for (const int hidden : {512, 1024})
    for (const char* precision : {"bf16", "f32"})
      for (const char* name : {"qkv", "ffn_up"}) {
        const bool f32 = std::string(precision) == "f32";
        const double flops_a_byte = f32 ? hidden / 2.0 : hidden;
        const auto step_of = [&](const char* where) {
          const std::string early = fmt::format("@0-{}", kLayers - 4);
          const std::string late = fmt::format("@{}-{}", kLayers - 3, kLayers - 1);
          Step::Pins pins = {{name + early, where}, {name + late, "host"}};
          for (const char* other : {"attn_norm", "qkv", "attn_out", "resid", "ffn_norm", "ffn_up",
                                    "ffn_act", "ffn_resid"})
            if (std::string(other) != name)
              pins.emplace_back(fmt::format("{}@0-{}", other, kLayers - 1), "host");
          return Step({.hidden = hidden, .precision = precision}, pins);
        };
        Step streamed = step_of("host"), recomputed = step_of("recompute");
        const double expected = kFlops / flops_a_byte;
        const double link = crossing(expected, 0, [&](double rate) {
          return streamed.simulated(rate).step_seconds - recomputed.simulated(rate).step_seconds;
        });
        fmt::print("{} in {}, K = {}: {:.3f} F/B FLOPs a byte\n", name, precision, hidden,
                   flops_a_byte * link / kFlops);
        EXPECT_NEAR(link, expected, 0.05 * expected);
      }
}

// On a link that is idle streaming costs nothing, however few FLOPs a byte costs to repeat: here K
// a byte, a third of F/B, and the 6 h bytes a token of qkv need a link of F / 4 K.
TEST(Laws, OffloadWinsWhereTheLinkIsIdle) {
  const Shape shape;
  const std::string qkv = fmt::format("qkv@0-{}", kLayers - 4);
  Step kept(shape, {{qkv, "device"}}), streamed(shape, {{qkv, "host"}});
  Step recomputed(shape, {{qkv, "recompute"}});
  const double link = kFlops / (3 * shape.hidden);
  const double seconds = kept.simulated(link).step_seconds;
  EXPECT_LE(streamed.simulated(link).step_seconds, 1.001 * seconds);
  // Three of the twelve h² of a block's forward pass, once more.
  const double repeated = 6.0 * shape.hidden * shape.hidden * kTokens * (kLayers - 3) / kFlops;
  EXPECT_NEAR(recomputed.simulated(link).step_seconds - seconds, repeated, 0.05 * repeated);
}

}  // namespace
}  // namespace spillway
