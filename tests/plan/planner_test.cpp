// Pins, the bytes that each class frees, plan files, messages, and every shipped model.
// links: spillway_plan spillway_model
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/plan/planner_input.h"

namespace spillway {
namespace {

constexpr int64_t kPlenty = int64_t{1} << 60;

constexpr const char* kLlama = R"({
  "model": {"family": "llama", "layers": 6, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 176,
            "context": 64, "tied_head": false},
  "data": {"train": ["x.txt"]}, "train": {"batch": 8, "micro_batch": 4, "precision": "bf16"},
  "hardware": {"profile": "cpu", "link": "2GB/s"}})";

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::bad_input);
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(Pins, AreNeverChanged) {
  PlannerInput p(kLlama, {R"(place={"qkv": "host", "moments@0-3,head": "device",
                             "ffn_up@1": "recompute", "ffn_act@2,4": "device"})",
                          "offload=auto"});
  const PlanReport all = p.plan(kPlenty);
  for (int k = 0; k < 8; ++k) {
    const PlanReport r = p.plan(all.device_minimum_bytes +
                                (all.all_resident_device_bytes - all.device_minimum_bytes) * k / 7);
    ASSERT_TRUE(r.fits);
    const auto& where = r.plan.placement.where;
    for (int32_t layer = 1; layer <= 6; ++layer) {
      EXPECT_EQ(where.at({"qkv", layer}), Where::host);
      if (layer <= 4) {
        EXPECT_EQ(where.at({"moments", layer}), Where::device);
      }
    }
    EXPECT_EQ(where.at({"moments", 7}), Where::device);
    EXPECT_EQ(where.at({"ffn_up", 2}), Where::recompute);
    EXPECT_EQ(where.at({"ffn_act", 3}), Where::device);
    EXPECT_EQ(where.at({"ffn_act", 5}), Where::device);
  }
  PlannerInput free(kLlama, {});
  EXPECT_LT(free.plan(0).device_minimum_bytes, all.device_minimum_bytes);
}

// A slow link and one micro-batch, with processors that no kernel of the device needs: the host
// updates where it is fast, not where it is slow, nor where the pins say otherwise.
TEST(Planner, UpdatesOnTheHostWhereThatPays) {
  const auto planned = [](double cpu, const char* pins) {
    PlannerInput p(kLlama, {std::string("place=") + pins});
    HardwareProfile& profile = p.input.profile;
    profile.kind = "cuda";
    set_link(profile, 0.2e9);
    profile.cpu_update_bandwidth = profile.host_bandwidth = cpu;
    return p.plan(p.plan(0).device_minimum_bytes * 5 / 4);
  };
  const PlanReport chosen = planned(50e9, "{}");
  const PlanReport without = planned(50e9, "{\"update\": \"end\"}");
  const PlanReport slow = planned(0.05e9, "{}");
  ASSERT_TRUE(chosen.fits && without.fits && slow.fits);
  EXPECT_TRUE(chosen.plan.schedule.updates_on_host());
  EXPECT_FALSE(without.plan.schedule.updates_on_host());
  EXPECT_FALSE(slow.plan.schedule.updates_on_host());
  EXPECT_LT(chosen.plan.step_seconds, 0.9 * without.plan.step_seconds);
  EXPECT_LE(chosen.bound_seconds, chosen.plan.step_seconds);
}

TEST(Pins, UpdatesOnTheHost) {
  for (const bool some : {false, true}) {
    PlannerInput p(kLlama,
                   {some ? "place={\"update@1-2\": \"host\", \"update@3\": \"host_rotated\"}"
                         : "place.update=host"});
    const PlanReport r = p.plan(int64_t{1} << 40);
    int layers = 0;
    for (const auto& [key, where] : r.plan.placement.where) {
      const UpdatePosition position = r.plan.schedule.position(key.second);
      const bool pinned = !some || (key.second >= 2 && key.second <= 4);
      EXPECT_EQ(ScheduleChoice::on_host(position), pinned) << key.second;
      if (key.first != "moments" || !pinned) continue;
      EXPECT_EQ(where, Where::host);
      ++layers;
    }
    EXPECT_EQ(layers, some ? 3 : p.config.model.layers + 2);
    EXPECT_TRUE(r.fits);
    EXPECT_GT(r.bound_seconds, 0);
    EXPECT_LE(r.bound_seconds, r.plan.step_seconds);
    // No state crosses the link, and the host's processors are given every update.
    int updates = 0;
    for (const Instr& i : r.plan.lowered.set.programs[0].instrs) {
      updates += i.kind == InstrKind::op && i.lane == Lane::cpu;
      if (i.kind == InstrKind::copy && !some) {
        EXPECT_NE(r.plan.lowered.set.buffers[i.out[0].buffer].place, "moments") << i.name;
      }
    }
    EXPECT_GT(updates, 0);
  }
  PlannerInput contrary(kLlama, {"place.update=host", "place.moments@1=device"});
  EXPECT_THROW(contrary.plan(0), Error);
}

TEST(Pins, ModesThatAreOff) {
  for (const bool offload : {false, true}) {
    PlannerInput p(kLlama, {offload ? "recompute=off" : "offload=off",
                            "place={\"qkv@0\": \"host\"}", "place.qkv@1=recompute"});
    const PlanReport r = p.plan(0);
    for (const auto& [key, where] : r.plan.placement.where) {
      const bool first = key == PlaceKey{"qkv", 1}, second = key == PlaceKey{"qkv", 2};
      if (first) {
        EXPECT_EQ(where, Where::host);
      }
      if (second) {
        EXPECT_EQ(where, Where::recompute);
      }
      if (!first && !second) {
        EXPECT_NE(where, offload ? Where::recompute : Where::host) << key.first;
      }
    }
  }
  PlannerInput off(kLlama, {"offload=off", "recompute=off"});
  const PlanReport r = off.plan(0);
  EXPECT_EQ(r.device_minimum_bytes, r.all_resident_device_bytes);
  EXPECT_FALSE(r.fits);
}

TEST(Pins, Errors) {
  const auto error = [](std::vector<std::pair<std::string, std::string>> pins) {
    PlannerInput p(kLlama, {});
    p.input.pins = std::move(pins);
    return error_of([&] { p.plan(kPlenty); });
  };
  EXPECT_NE(error({{"qkw", "host"}}).find("did you mean \"qkv\""), std::string::npos);
  EXPECT_NE(error({{"qkv", "hots"}}).find("did you mean \"host\""), std::string::npos);
  EXPECT_NE(error({{"moments", "recompute"}}).find("cannot be recomputed"), std::string::npos);
  EXPECT_NE(error({{"resid@1", "recompute"}}).find("cannot be recomputed"), std::string::npos);
  EXPECT_NE(error({{"qkv@head", "host"}}).find("none of these layers"), std::string::npos);
  EXPECT_NE(error({{"qkv", "host"}, {"qkv@2", "device"}}).find("contradict"), std::string::npos);
}

// Streaming one class alone: the peak falls by its bytes, and rises by its ring's slots.
TEST(Classes, FreeTheirBytes) {
  // bf16, L layers, h hidden, f ffn, T tokens of a micro-batch.
  constexpr int64_t kLayers = 6, kH = 64, kF = 176, kT = 256, kQkv = (4 + 2 * 2) * 16;
  const auto rounded = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  struct Case {
    std::string place;
    int64_t freed, slot;
  };
  // Statistics of a norm (one f32 a token) and the log-sum-exp (H of them) move with it.
  const int64_t stats = kT * 4;
  const std::vector<Case> cases = {
      {"qkv", kLayers * kT * kQkv * 2, kT * kQkv * 2},
      {"ffn_up", kLayers * kT * 2 * kF * 2, kT * 2 * kF * 2},
      {"ffn_act", kLayers * kT * kF * 2, kT * kF * 2},
      {"ffn_resid", kLayers * kT * kH * 2, kT * kH * 2},
      {"attn_norm", kLayers * (kT * kH * 2 + stats), kT * kH * 2 + stats},
      {"attn_out", kLayers * (kT * kH * 2 + 4 * stats), kT * kH * 2 + 4 * stats}};
  const auto streamed = [](const std::string& place) {
    return std::vector<std::pair<std::string, std::string>>{{place, "host"}};
  };
  PlannerInput p(kLlama, {});
  // Of the same schedule: which order of the work is fastest is not the point here.
  const int64_t resident = evaluate_placement(p.input, {}, {1}).device.peak;
  for (const Case& c : cases) {
    p.input.pins = streamed(c.place);
    const Plan plan = evaluate_placement(p.input, placement_of_pins(p.input), {1});
    EXPECT_EQ(plan.device.peak, resident - c.freed + 2 * c.slot) << c.place;
  }
  // What outlives a micro-batch: tensor by tensor, from the shapes; the rings as they were made.
  const int64_t vocab = 384;  // 257 padded to 128
  const auto total = [&](int64_t matrix_bytes, int64_t vector_bytes) {
    int64_t bytes = 2 * rounded(matrix_bytes * vocab * kH) + rounded(vector_bytes * kH);
    for (const int64_t matrix : {kQkv * kH, kH * kH, 2 * kF * kH, kF * kH})
      bytes += kLayers * rounded(matrix_bytes * matrix);
    return bytes + kLayers * 2 * rounded(vector_bytes * kH);
  };
  const std::vector<std::pair<std::string, int64_t>> persistent = {
      {"moments", 2 * total(4, 4)},
      {"master", total(4, 0)},  // norms are their own
      {"gradients", total(4, 4)},
      {"parameters", total(2, 4)}};
  for (const auto& [place, bytes] : persistent) {
    p.input.pins = streamed(place);
    const Plan plan = evaluate_placement(p.input, placement_of_pins(p.input), {1});
    int64_t rings = 0;
    for (const Buffer& b : plan.lowered.set.buffers)
      if (b.name.starts_with("ring ")) rings += rounded(b.bytes) * b.versions;
    EXPECT_EQ(plan.device.peak, resident - bytes + rings) << place;
    EXPECT_EQ(plan.device.by_class.at(place), rings) << place;
    EXPECT_LT(rings, bytes * 6 / 10) << place;
  }
}

TEST(PlanFile, RoundTrip) {
  PlannerInput p(kLlama, {});
  const PlanReport all = p.plan(kPlenty);
  for (int k = 0; k < 6; ++k) {
    const PlanReport report =
        p.plan(all.device_minimum_bytes +
               (all.all_resident_device_bytes - all.device_minimum_bytes) * k / 5);
    const Plan& plan = report.plan;
    const PlanSubject subject = plan_subject(p.config, 1, p.input.profile);
    std::optional<QualityProof> proof = quality_proof(report, p.input);
    ASSERT_TRUE(proof);
    for (Certificate& c : proof->certificates)  // a table has no order
      std::sort(c.multipliers.begin(), c.multipliers.end());
    const std::string text = placement_to_json(plan, subject, proof);
    const LoadedPlan back = placement_from_json(text, "plan.json", p.train, subject);
    EXPECT_EQ(back.placement.where, plan.placement.where);
    EXPECT_EQ(back.placement.slots, plan.placement.slots);
    EXPECT_EQ(back.schedule, plan.schedule);
    ASSERT_TRUE(back.proof);
    EXPECT_EQ(*back.proof, *proof);
    const Plan again = evaluate_placement(p.input, back.placement, back.schedule);
    EXPECT_EQ(program_hash(again.lowered.set, again.layout),
              program_hash(plan.lowered.set, plan.layout));
  }
}

// A free stage: the best of the four, and in the plan file that of every layer.
TEST(PlanFile, StagesByLayer) {
  constexpr int kRanks = 2;
  PlannerInput p(kLlama, {"parallel.zero=auto"}, kRanks);
  const int64_t plenty = p.plan(kPlenty).all_resident_device_bytes;
  for (const int64_t device : {plenty, plenty * 2 / 3, p.plan(kPlenty).device_minimum_bytes}) {
    const PlanReport free = p.plan(device);
    ASSERT_TRUE(free.fits);
    ASSERT_EQ(free.plan.schedule.zero.size(), 8u);
    double best = std::numeric_limits<double>::infinity();
    int64_t minimum = kPlenty;
    for (int stage = 0; stage < 4; ++stage) {
      PlannerInput fixed(kLlama, {fmt::format("parallel.zero={}", stage)}, kRanks);
      const PlanReport one = fixed.plan(device);
      if (one.fits) best = std::min(best, one.plan.step_seconds);
      minimum = std::min(minimum, one.device_minimum_bytes);
    }
    EXPECT_EQ(free.plan.step_seconds, best);
    EXPECT_EQ(free.device_minimum_bytes, minimum);
    const Plan again = evaluate_placement(p.input, free.plan.placement, free.plan.schedule);
    EXPECT_EQ(program_hash(again.lowered.set, again.layout),
              program_hash(free.plan.lowered.set, free.plan.layout));
  }
  Plan plan = p.plan(plenty).plan;
  plan.schedule.zero = {3, 1, 1, 2, 3, 0, 0, 3};
  const PlanSubject subject = plan_subject(p.config, kRanks, p.input.profile);
  const std::string good = placement_to_json(plan, subject, {});
  EXPECT_EQ(placement_from_json(good, "plan.json", p.train, subject).schedule, plan.schedule);
  const auto refused = [&](const std::function<void(nlohmann::ordered_json&)>& change,
                           const TrainSchedules& train, const std::string& part) {
    nlohmann::ordered_json j = nlohmann::ordered_json::parse(good);
    change(j);
    const std::string message =
        error_of([&] { placement_from_json(j.dump(), "plan.json", train, subject); });
    EXPECT_TRUE(message.starts_with("plan.json: ")) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  refused([](auto& j) { j.erase("zero"); }, p.train, "no ZeRO stages by layer");
  refused([](auto& j) { j["zero"].erase("3"); }, p.train, "zero says nothing of layer embed");
  refused([](auto& j) { j["zero"]["4"] = "0"; }, p.train, "zero.4: no such stage");
  refused([](auto& j) { j["zero"]["2"] = "0-2"; }, p.train, "zero names a layer twice");
  refused([](auto& j) { j["zero"]["2"] = "7"; }, p.train, "7");
  refused([](auto& j) { j["zero"]["2"] = 7; }, p.train, "string");
  refused([](auto& j) { j["zero"] = 1; }, p.train, "no such stage");
  refused([](auto&) {}, p.train.with_zero(1), "set parallel.zero to \"auto\"");
}

TEST(PlanFile, Errors) {
  PlannerInput p(kLlama, {});
  const PlanSubject subject = plan_subject(p.config, 1, p.input.profile);
  const PlanReport report = p.plan(kPlenty);
  const std::string good = placement_to_json(report.plan, subject, quality_proof(report, p.input));
  const auto error = [&](const std::string& text, const PlanSubject* other = nullptr) {
    const std::string message = error_of([&] {
      placement_from_json(text, "plan.json", p.train, other == nullptr ? subject : *other);
    });
    EXPECT_TRUE(message.starts_with("plan.json: ")) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
    return message;
  };
  const auto changed = [&](const std::function<void(nlohmann::ordered_json&)>& change) {
    nlohmann::ordered_json j = nlohmann::ordered_json::parse(good);
    change(j);
    return error(j.dump());
  };
  const auto has = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  has(error(""), "not a JSON");
  has(error(good.substr(0, good.size() / 2)), "not a JSON");
  has(error("[]"), "not a plan file");
  // For another run: both hashes and the first key that differs.
  const auto has_all = [&](const std::string& message, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) has(message, part);
  };
  Config another = p.config;
  another.train.seed = 77;
  another.optimizer.lr = 0.5;
  const PlanSubject of_another = plan_subject(another, 1, p.input.profile);
  has_all(error(good, &of_another),
          {subject.numerics, of_another.numerics, "train.seed is 1 ", "77"});
  const PlanSubject of_ranks = plan_subject(p.config, 2, p.input.profile);
  has_all(error(good, &of_ranks), {subject.numerics, of_ranks.numerics, "ranks is 1 there and 2"});
  HardwareProfile slower = p.input.profile;
  slower.h2d_bandwidth /= 2;
  slower.network_bandwidth *= 2;
  const PlanSubject of_slower = plan_subject(p.config, 1, slower);
  has_all(error(good, &of_slower), {subject.profile, of_slower.profile, "h2d_bandwidth is"});
  has(changed([](auto& j) { j["numerics"]["hash"] = "0123456789abcdef"; }), "0123456789abcdef");
  has(changed([](auto& j) { j["profile"]["values"]["peak_f32"] = 1; }), "peak_f32 is 1 there");
  has(changed([](auto& j) { j["profile"]["values"].erase("peak_f32"); }), "peak_f32 is not set");
  has(changed([](auto& j) { j["profile"]["values"]["x"] = 1; }), "x is 1 there and not set here");
  has(changed([](auto& j) { j["profile"]["values"] = 1; }), "profile.values");
  has(changed([](auto& j) { j["quality"]["bound_seconds"] = nullptr; }), "quality.bound_seconds");
  has(changed([](auto& j) { j["quality"]["device_bytes"] = -1; }), "quality.device_bytes");
  has(changed([](auto& j) { j["quality"]["certificates"] = 1; }), "quality.certificates");
  has(changed([](auto& j) { j["quality"]["certificates"][0]["blocks"] = 0; }), "blocks");
  has(changed([](auto& j) { j["quality"]["certificates"][0]["multipliers"] = 3; }), "multipliers");
  has(changed(
          [](auto& j) { j["quality"]["certificates"][0]["multipliers"].begin().value() = "one"; }),
      "expected a number");
  has(changed([](auto& j) { j["quality"].erase("threads"); }), "threads");
  has(changed([](auto& j) { j["format"] = "spillway plan 1"; }), "not a plan file");
  has(changed([](auto& j) { j.erase("numerics"); }), "numerics");
  has(changed([](auto& j) { j["reduce_delay"] = 2; }), "reduce_delay");
  has(changed([](auto& j) { j["reduce_delay"] = true; }), "reduce_delay");
  has(changed([](auto& j) { j["gather_ahead"] = 2; }), "gather_ahead");
  has(changed([](auto& j) { j["group"] = 0; }), "group");
  has(changed([](auto& j) { j.erase("group"); }), "group");
  has(changed([](auto& j) { j["slots"]["qkv"] = 0; }), "slots.qkv");
  has(changed([](auto& j) { j["slots"]["qkv"] = 1.5; }), "slots.qkv");
  has(changed([](auto& j) { j["slots"]["qkv"] = 4294967297; }), "slots.qkv");
  has(changed([](auto& j) { j["slots"]["qkw"] = 1; }), "did you mean \"qkv\"");
  has(changed([](auto& j) { j["slots"] = 3; }), "slots");
  has(changed([](auto& j) { j["place"] = "x"; }), "place");
  has(changed([](auto& j) { j["place"].erase(j["place"].begin()); }), "no decision");
  has(changed([](auto& j) { j["place"]["qkv@0"] = "host"; }), "twice");
  has(changed([](auto& j) { j["place"]["qkw@0"] = "host"; }), "did you mean \"qkv\"");
  has(changed([](auto& j) { j["place"]["qkv@99"] = "host"; }), "block 99");
  has(changed([](auto& j) { j["place"].begin().value() = "cloud"; }), "cloud");
  has(changed([](auto& j) { j["place"].begin().value() = 7; }), "expected device");
  has(changed([](auto& j) {
        for (auto& [key, value] : j["place"].items())
          if (key.starts_with("moments")) value = "recompute";
      }),
      "cannot be recomputed");
}

TEST(Shortfall, NamesTierAndSettingsThatFit) {
  PlannerInput p(kLlama, {});
  const PlanReport all = p.plan(kPlenty);
  const int64_t least = all.device_minimum_bytes, host = all.host_of_minimum_bytes;
  const auto quoted_after = [](const std::string& text, const std::string& key) {
    const size_t at = text.find(key);
    EXPECT_NE(at, std::string::npos) << text;
    const size_t begin = text.find('"', at) + 1;
    return parse_bytes(text.substr(begin, text.find('"', begin) - begin), key);
  };
  std::string message = shortfall_message(p.plan(least / 2), p.input.budgets);
  EXPECT_NE(message.find("device memory"), std::string::npos) << message;
  EXPECT_EQ(message.find("memory.host"), std::string::npos) << message;
  EXPECT_NE(message.find(format_bytes(least - least / 2)), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_TRUE(p.plan(quoted_after(message, "memory.device")).fits);

  message = shortfall_message(p.plan(least, host / 2), p.input.budgets);
  EXPECT_NE(message.find("host memory"), std::string::npos) << message;
  EXPECT_EQ(message.find("memory.device"), std::string::npos) << message;
  EXPECT_TRUE(p.plan(least, quoted_after(message, "memory.host")).fits);

  message = shortfall_message(p.plan(least / 3, host / 3), p.input.budgets);
  EXPECT_TRUE(
      p.plan(quoted_after(message, "memory.device"), quoted_after(message, "memory.host")).fits);
}

TEST(Shipped, EveryModelPlans) {
  for (const std::string& name : preset_names("models")) {
    const bool large = name.starts_with("llama3") || name.starts_with("qwen3");
    PlannerInput p(fmt::format(R"({{"model": {{"preset": "{}", "context": {}}},
        "data": {{"train": ["x.bin"], "tokenizer": "uint32", "validation": 0.1}},
        "train": {{"batch": 8, "micro_batch": 1, "precision": "bf16", "eval_every": 5}},
        "hardware": {{"profile": "{}"}}}})",
                               name, large ? 4096 : 256, large ? "h100-80" : "cpu"),
                   name == "quickstart" ? std::vector<std::string>{"model.vocab=257"}
                                        : std::vector<std::string>{});
    const PlanReport all = p.plan(kPlenty);
    const PlanReport r = p.plan(all.device_minimum_bytes);
    EXPECT_TRUE(all.fits && r.fits) << name;
    EXPECT_LT(r.device_minimum_bytes, all.all_resident_device_bytes * 35 / 100) << name;
    EXPECT_GE(r.plan.step_seconds, all.all_resident_step_seconds);
    EXPECT_GT(all.plan.mfu, 0.05);
    std::printf("%s: minimum %s, all resident %s\n", name.c_str(),
                format_bytes(r.device_minimum_bytes).c_str(),
                format_bytes(all.all_resident_device_bytes).c_str());
  }
}

}  // namespace
}  // namespace spillway
