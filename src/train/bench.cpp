#include "train/bench.h"

#include <algorithm>
#include <chrono>

#include "base/quantile.h"
#include "config/hardware.h"
#include "runtime/launch.h"
#include "runtime/local_communicator.h"
#include "telemetry/timeline.h"
#include "train/bench_checkpoint.h"
#include "train/bench_device.h"
#include "train/bench_gemm.h"
#include "train/bench_planner.h"
#include "train/bench_predict.h"
#include "train/stepper.h"

namespace spillway {
namespace {

int bench_threads(const Config& config) {
  LocalCommunicator alone;
  return claim_cores(static_cast<int>(config.train.threads), alone).threads;
}

double best_gemm(const Config& config, int threads, int64_t repeat) {
  const Dtype dtype = config.train.precision == Precision::bf16 ? Dtype::bf16 : Dtype::f32;
  double best = 0;
  for (const GemmRate& g : measure_gemm(dtype, threads, repeat))
    best = std::max({best, g.ours, g.onednn});
  return best;
}

void bench_gemm(int64_t repeat, int threads) {
  fmt::print("{:<6} {:>18} {:>14} {:>14}   ({} threads)\n", "dtype", "m x n x k", "ours GFLOP/s",
             "oneDNN GFLOP/s", threads);
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
    for (const GemmRate& g : measure_gemm(dtype, threads, repeat))
      fmt::print("{:<6} {:>18} {:>14.0f} {:>14.0f}\n", name_of(dtype),
                 fmt::format("{}x{}x{}", g.m, g.n, g.k), g.ours * 1e-9, g.onednn * 1e-9);
}

void bench_step(const Config& config, int64_t repeat) {
  const int threads = bench_threads(config);
  Stepper stepper(config, threads);
  stepper.step();
  std::vector<double> seconds;
  double gemm = best_gemm(config, threads, 3);
  for (int64_t i = 0; i < repeat; ++i) seconds.push_back(stepper.step());
  gemm = std::max(gemm, best_gemm(config, threads, 3));
  const double s = median(seconds);
  const double rate = stepper.workload().flops_per_step() / s;
  fmt::print("step {:.1f} ms, {:.0f} tokens/s, {:.0f} GFLOP/s with {} threads\n", 1e3 * s,
             static_cast<double>(stepper.workload().tokens_per_step) / s, rate * 1e-9, threads);
  fmt::print("best GEMM of this run {:.0f} GFLOP/s; the step reaches {:.1f} % of it\n", gemm * 1e-9,
             100 * rate / gemm);
}

// Seconds of copies during which the compute lane was busy, and of all copies.
std::pair<double, double> overlap_of(const std::vector<TraceEvent>& events) {
  std::vector<std::pair<double, double>> busy;
  for (const TraceEvent& e : events)
    if (e.lane == Lane::compute) busy.push_back({e.begin, e.end});
  std::sort(busy.begin(), busy.end());
  double under = 0, total = 0;
  for (const TraceEvent& e : events) {
    if (e.lane != Lane::h2d && e.lane != Lane::d2h) continue;
    total += e.end - e.begin;
    for (const auto& [begin, end] : busy) {
      if (begin >= e.end) break;
      under += std::max(0.0, std::min(end, e.end) - std::max(begin, e.begin));
    }
  }
  return {under, total};
}

void bench_overlap(Config config, int64_t repeat) {
  // One compute thread; the copies' threads have the other core.
  const int threads = std::max(1, bench_threads(config) - 1);
  config.place.clear();
  Config resident = config;
  resident.offload = resident.recompute = Mode::off;
  resident.hardware.link = 0;
  Stepper plain(resident, threads);
  plain.step();
  std::vector<double> plain_seconds;
  for (int64_t i = 0; i < repeat; ++i) plain_seconds.push_back(plain.step());

  Config streaming = config;
  streaming.recompute = Mode::off;
  for (const char* place : {"moments", "qkv", "attn_out", "ffn_up", "ffn_act"})
    streaming.place.push_back({place, "host"});
  streaming.hardware.link = 1e15;
  int64_t bytes[2] = {0, 0};  // each way
  {
    const Workload workload(streaming, Topology{.threads = threads});
    const Plan plan = make_plan(workload.input).plan;
    const Program& program = plan.lowered.set.programs[0];
    for (const Segment& s : program.segments)
      for (InstrId i = s.begin; i < s.end; ++i)
        if (program.instrs[i].kind == InstrKind::copy)
          bytes[program.instrs[i].lane == Lane::d2h] += s.trip * program.instrs[i].in[0].bytes();
  }
  constexpr double kCopyShare = 0.6;
  streaming.hardware.link =
      static_cast<double>(bytes[0] + bytes[1]) / (kCopyShare * median(plain_seconds));
  Stepper streamed(streaming, threads);
  streamed.step();
  plain_seconds.clear();
  std::vector<double> streamed_seconds;
  for (int64_t i = 0; i < repeat; ++i) {
    plain_seconds.push_back(plain.step());
    streamed_seconds.push_back(streamed.step());
  }
  size_t instances = 0;
  for (const Segment& s : streamed.session().report().plan.lowered.set.programs[0].segments)
    instances += static_cast<size_t>(s.end - s.begin) * static_cast<size_t>(s.trip);
  streamed.session().recorder().capture(instances);
  streamed.step();
  const auto [under, total] = overlap_of(streamed.session().recorder().captured());
  const double resident_s = median(plain_seconds), streamed_s = median(streamed_seconds);
  fmt::print("all-resident: {:.1f} ms a step in {}\n", 1e3 * resident_s,
             format_bytes(plain.session().report().plan.device.peak));
  fmt::print(
      "streaming:    {:.1f} ms a step in {}; {} to the device and {} back a step over {}/s each "
      "way\n",
      1e3 * streamed_s, format_bytes(streamed.session().report().plan.device.peak),
      format_bytes(bytes[0]), format_bytes(bytes[1]),
      format_bytes(static_cast<int64_t>(streaming.hardware.link)));
  fmt::print("step ratio {:.3f}; {:.1f} % of copy seconds under compute\n", streamed_s / resident_s,
             total > 0 ? 100 * under / total : 0.0);
}

}  // namespace

ExitCode bench_command(const BenchOptions& options) {
  const std::vector<std::string> words = {"gemm",       "step",    "overlap", "device",
                                          "checkpoint", "predict", "planner", "claims"};
  if (std::find(words.begin(), words.end(), options.what) == words.end())
    bad_input(
        "bench: unknown benchmark \"{}\"; did you mean \"{}\"? (gemm, step, overlap, device, "
        "checkpoint, predict, planner, claims)",
        options.what, nearest(options.what, words));
  if (options.what == "planner") bench_planner(options.only);
  if (options.what == "claims") fmt::print("{}", claims_tables(options.only));
  if (options.what == "planner" || options.what == "claims") return ExitCode::done;
  if (!options.only.empty())
    bad_input("bench {}: --only goes with bench planner and bench claims", options.what);
  const std::string path = options.config.empty()
                               ? config_root() + "/configs/runs/gpt2-124m-bench.json"
                               : options.config;
  if (!options.json.empty() && options.what != "device")
    bad_input("bench {}: --json goes with bench device", options.what);
  const Config config = load_config(path, options.set);
  if (options.what == "gemm") bench_gemm(options.repeat, bench_threads(config));
  if (options.what == "step") bench_step(config, options.repeat);
  if (options.what == "device")
    bench_device(config, bench_threads(config), options.repeat, options.json);
  if (options.what == "overlap") bench_overlap(config, options.repeat);
  if (options.what == "predict")
    // The copies' threads have the other core.
    bench_predict(config, std::max(1, bench_threads(config) - 1), options.cases, options.repeat,
                  options.seed);
  if (options.what == "checkpoint") bench_checkpoint(config, bench_threads(config), options.repeat);
  return ExitCode::done;
}

}  // namespace spillway
