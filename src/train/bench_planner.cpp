#include "train/bench_planner.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/error.h"
#include "train/workload.h"

namespace spillway {
namespace {

struct Case {
  std::string name, model;  // the model's JSON
  std::string profile;
  int ranks = 1, devices_per_node = 8;
  int64_t batch = 1, micro_batch = 1;
  std::vector<std::string> set;
};

std::string gpt2(int layers, int hidden, int heads, int context) {
  return fmt::format(
      R"({{"family":"gpt2","layers":{},"hidden":{},"heads":{},"ffn":{},"context":{},"vocab":50257}})",
      layers, hidden, heads, 4 * hidden, context);
}
std::string llama(int layers, int hidden, int heads, int kv_heads, int ffn, int context) {
  return fmt::format(
      R"({{"family":"llama","layers":{},"hidden":{},"heads":{},"kv_heads":{},"ffn":{},"context":{},"vocab":128256,"tied_head":false}})",
      layers, hidden, heads, kv_heads, ffn, context);
}

const std::string kGpt124m = gpt2(12, 768, 12, 1024), kGpt355m = gpt2(24, 1024, 16, 1024),
                  kGpt1558m = gpt2(48, 1600, 25, 1024), kGpt175b = gpt2(96, 12288, 96, 2048),
                  kLlama8b = llama(32, 4096, 32, 8, 14336, 8192),
                  kLlama70b = llama(80, 8192, 64, 8, 28672, 4096);

std::vector<Case> suite() {
  const std::vector<std::string> zero3 = {"parallel.zero=3"}, noclip = {"optimizer.clip=0"};
  return {
      {"gpt2-124m", kGpt124m, "h100-80", 1, 8, 64, 8, {}},
      {"gpt2-124m", kGpt124m, "rtx4090", 8, 8, 128, 4, noclip},
      {"gpt2-124m f32", kGpt124m, "cpu", 1, 1, 8, 4, {"train.precision=f32"}},
      {"gpt2-355m", kGpt355m, "a100-40", 4, 8, 256, 4, {}},
      {"gpt2-1558m", kGpt1558m, "rtx4090", 1, 8, 32, 1, {}},
      {"gpt2-1558m", kGpt1558m, "a100-40", 8, 8, 512, 1, {"parallel.zero=1"}},
      {"gpt2-1558m", kGpt1558m, "cpu", 2, 2, 8, 1, {}},
      {"llama-8b", kLlama8b, "h100-80", 8, 8, 128, 1, {}},
      {"llama-8b", kLlama8b, "h200-141", 1, 8, 16, 1, {}},
      {"llama-8b", kLlama8b, "a100-80", 8, 8, 64, 1, {"parallel.zero=3", "optimizer.clip=0"}},
      {"llama-70b", kLlama70b, "h100-80", 64, 8, 256, 1, zero3},
      {"llama-70b", kLlama70b, "a100-80", 128, 8, 128, 1, zero3},
      {"llama-70b", kLlama70b, "h200-141", 4096, 8, 8192, 1, zero3},
      {"gpt3-175b",
       kGpt175b,
       "a100-80",
       64,
       8,
       768,
       1,
       {"parallel.zero=3", "parallel.reduce_every=4"}},
      {"gpt3-175b",
       kGpt175b,
       "h100-80",
       512,
       8,
       1024,
       1,
       {"parallel.zero=3", "parallel.reduce_every=2"}},
  };
}

Config config_of(const Case& c) {
  const std::string text = fmt::format(
      R"({{"model":{},"data":{{"train":["tokens.bin"],"tokenizer":"uint32","validation":0.001}},)"
      R"("train":{{"steps":1000,"batch":{},"micro_batch":{},"precision":"bf16"}},)"
      R"("memory":{{"host":"1000000GB"}},)"
      R"("hardware":{{"profile":"{}","devices_per_node":{}}}}})",
      c.model, c.batch, c.micro_batch, c.profile, c.devices_per_node);
  return parse_config(text, c.name, c.set);
}

Topology topology_of(const Case& c) {
  return {.ranks = c.ranks, .ranks_on_node = std::min(c.ranks, c.devices_per_node)};
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::string gb(int64_t bytes) { return fmt::format("{:.2f}", static_cast<double>(bytes) * 1e-9); }

// A step's time with enough digits for a gap of a thousandth.
std::string time_of(double seconds) {
  return seconds >= 1 ? fmt::format("{:.3f} s", seconds) : fmt::format("{:.3f} ms", 1e3 * seconds);
}

}  // namespace

void bench_planner(const std::string& only) {
  fmt::print("{:<14} {:>5} {:<9} {:>6} {:>10} {:>13} {:>13} {:>7} {:>6} {:>8}\n", "model", "ranks",
             "profile", "micros", "device GB", "step", "bound", "gap %", "group", "plan s");
  std::vector<double> gaps;
  int infeasible = 0;
  for (const Case& c : suite()) {
    if (c.name.find(only) == std::string::npos) continue;
    Workload w(config_of(c), topology_of(c));
    const PlanReport whole = make_plan(w.input);
    const int64_t least = whole.device_minimum_bytes, all = whole.all_resident_device_bytes;
    int64_t slots = 0;  // one slot of every ring of the plan of least memory
    w.input.budgets.device = least;
    for (const Buffer& b : make_plan(w.input).plan.lowered.set.buffers)
      if (b.tier == Tier::device && b.name.starts_with("ring ")) slots += b.bytes;
    const int64_t from = std::min(least + slots, all);
    for (const double at : {0.0, 0.15, 0.4, 0.75}) {
      w.input.budgets.device = from + static_cast<int64_t>(at * static_cast<double>(all - from));
      const auto begin = std::chrono::steady_clock::now();
      const PlanReport r = make_plan(w.input);
      const double seconds = seconds_since(begin);
      const double gap = r.plan.step_seconds / r.bound_seconds - 1;
      infeasible += !r.fits;
      if (r.fits) gaps.push_back(gap);
      fmt::print("{:<14} {:>5} {:<9} {:>6} {:>10} {:>13} {:>13} {:>7.2f} {:>6} {:>8.2f}\n", c.name,
                 c.ranks, c.profile, w.spec.micro_batches, gb(w.input.budgets.device),
                 r.fits ? time_of(r.plan.step_seconds) : "not found", time_of(r.bound_seconds),
                 100 * gap, r.plan.schedule.group, seconds);
      std::fflush(stdout);
    }
  }
  std::sort(gaps.begin(), gaps.end());
  if (gaps.empty()) bad_input("bench planner: no case is named like \"{}\"", only);
  fmt::print(
      "{} cases: gap {:.2f} % median, {:.2f} % at the 90th percentile, {:.2f} % worst; {} "
      "without a plan\n",
      gaps.size() + static_cast<size_t>(infeasible), 100 * gaps[gaps.size() / 2],
      100 * gaps[gaps.size() * 9 / 10], 100 * gaps.back(), infeasible);
}

namespace {

struct Claim {
  std::string heading;
  Case base;
  std::vector<int64_t> batches;
  std::vector<std::string> links;   // as configs spell them
  std::vector<std::string> memory;  // the first: what plans without offload may use
  int64_t most_reduce_every = 1;    // sums over ranks after so many micro-batches; 0: as one rank
};

PlanReport planned(Case c, int64_t batch, const std::string& link, const std::string& memory,
                   bool offload, int64_t reduce_every) {
  c.batch = batch;
  c.set.push_back("hardware.link=" + link);
  c.set.push_back("memory.device=" + memory);
  if (!offload) c.set.push_back("offload=off");
  if (reduce_every > 0) c.set.push_back(fmt::format("parallel.reduce_every={}", reduce_every));
  const Workload w(config_of(c), topology_of(c));
  return make_plan(w.input);
}

// The fastest over the intervals of sums that divide a rank's micro-batches.
PlanReport best_planned(const Claim& claim, int64_t batch, const std::string& link,
                        const std::string& memory, bool offload, int64_t* reduce_every) {
  const int64_t micros = batch / (claim.base.ranks * claim.base.micro_batch);
  PlanReport best;
  for (int64_t every = 1; every <= std::min(micros, std::max<int64_t>(1, claim.most_reduce_every));
       ++every) {
    if (micros % every != 0) continue;
    PlanReport r =
        planned(claim.base, batch, link, memory, offload, claim.most_reduce_every > 0 ? every : 0);
    if (!r.fits || (best.fits && best.plan.step_seconds <= r.plan.step_seconds)) continue;
    best = std::move(r);
    *reduce_every = every;
  }
  return best;
}

// Empty where `only` is in neither the heading nor "TOKENS LINK" of any row.
std::string table_of(const Claim& claim, const std::string& only) {
  std::string text = claim.heading + "\n";
  text += fmt::format("{:>9} {:>8} {:>7} {:>10} {:>10} {:>7} {:>8} {:>6} {:>7} {:>13} {:>8}\n",
                      "tokens", "link", "device", "step", "bound", "gap %", "exposed%", "group",
                      "summed", "no offload", "speed-up");
  const int64_t context = parse_config(R"({"model":)" + claim.base.model +
                                           R"(,"data":{"train":["t"],"tokenizer":"uint32"}})",
                                       "claims", {})
                              .model.context;
  bool any = false;
  for (const int64_t batch : claim.batches)
    for (const std::string& link : claim.links) {
      const std::string tokens = fmt::format("{}k", batch * context / 1024);
      if ((claim.heading + "\n" + tokens + " " + link).find(only) == std::string::npos) continue;
      any = true;
      int64_t every = 1;
      const PlanReport plain = best_planned(claim, batch, link, claim.memory[0], false, &every);
      for (const std::string& memory : claim.memory) {
        const PlanReport r = best_planned(claim, batch, link, memory, true, &every);
        if (!r.fits) {
          text += fmt::format("{:>9} {:>8} {:>7} no plan found\n", tokens, link, memory);
          continue;
        }
        text += fmt::format(
            "{:>9} {:>8} {:>7} {:>8.3f} s {:>8.3f} s {:>7.2f} {:>8.2f} {:>6} {:>7} {:>13} {:>8}\n",
            tokens, link, memory, r.plan.step_seconds, r.bound_seconds,
            100 * (r.plan.step_seconds / r.bound_seconds - 1),
            100 * r.plan.exposed_transfer_seconds() / r.plan.step_seconds, r.plan.schedule.group,
            every, plain.fits ? fmt::format("{:.3f} s", plain.plan.step_seconds) : "does not fit",
            plain.fits ? fmt::format("{:.3f}", plain.plan.step_seconds / r.plan.step_seconds)
                       : "-");
      }
    }
  return any ? text : "";
}

std::vector<Claim> claims() {
  return {{"GPT-3 175B on 64 A100 80 GB, sharded over all, clip on",
           {"gpt3-175b", kGpt175b, "a100-80", 64, 8, 0, 1, {"parallel.zero=3"}},
           {128, 256, 768},
           {"12.5GB/s", "24GB/s"},
           {"78GB", "47GB", "39GB", "31GB"},
           4},
          {"Llama-3 8B on one H200, micro-batches of 4k tokens",
           {"llama3-8b", llama(32, 4096, 32, 8, 14336, 4096), "h200-141", 1, 8, 0, 1, {}},
           {16, 128},
           {"25GB/s", "50GB/s"},
           {"139GB", "100GB", "70GB", "40GB"},
           0}};
}

}  // namespace

std::string claims_tables(const std::string& only) {
  std::string text;
  for (const Claim& claim : claims())
    if (const std::string table = table_of(claim, only); !table.empty())
      text += (text.empty() ? "" : "\n") + table;
  if (text.empty()) bad_input("bench claims: no table or row is named like \"{}\"", only);
  return text;
}

}  // namespace spillway
