#include "train/bench_device.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/quantile.h"
#include "program/op_cost.h"
#include "train/bench_link.h"
#include "train/stepper.h"

namespace spillway {
namespace {

using nlohmann::ordered_json;

struct OpTime {
  int64_t calls = 0;
  double seconds = 0, flops = 0, bytes = 0;
  double roofline = 0;  // seconds at the profile's peak or bandwidth
};

// Seconds by instruction, from the compute lane's thread or the issuing one.
struct Collector {
  std::mutex mutex;
  std::map<const Instr*, std::pair<int64_t, double>> of;
  static void sink(void* context, Lane lane, const Instr* instr, const LaneTimes& times) {
    if (lane != Lane::compute || instr->kind != InstrKind::op) return;
    Collector& c = *static_cast<Collector*>(context);
    const std::lock_guard lock(c.mutex);
    auto& [calls, seconds] = c.of[instr];
    ++calls;
    seconds += times.end - times.begin;
  }
};

std::map<std::string, OpTime> by_op(const Collector& collected, const Program& program,
                                    const HardwareProfile& profile) {
  std::map<std::string, OpTime> ops;
  for (const auto& [instr, time] : collected.of) {
    const Cost cost = op_cost(program, *instr);
    const bool tensor_cores =
        (cost.gemm || cost.attention) && !instr->in.empty() && instr->in[0].dtype == Dtype::bf16;
    const double peak = tensor_cores ? profile.peak_bf16 : profile.peak_f32;
    OpTime& op = ops[std::string(op_def(instr->op).name)];
    const auto calls = static_cast<double>(time.first);
    op.calls += time.first;
    op.seconds += time.second;
    op.flops += calls * cost.flops;
    op.bytes += calls * cost.bytes;
    op.roofline += calls * std::max(cost.flops / peak, cost.bytes / profile.memory_bandwidth);
  }
  return ops;
}

ordered_json print_link(const LinkRates& r) {
  fmt::print("copies of {}            to device     to host  (GB/s)\n", format_bytes(r.copy_bytes));
  const auto line = [](const char* name, double in, double out) {
    fmt::print("  {:<24} {:>11.2f} {:>11.2f}\n", name, in * 1e-9, out * 1e-9);
  };
  line("one way at a time", r.h2d, r.d2h);
  line("both ways", r.h2d_both, r.d2h_both);
  line("both ways under GEMM", r.h2d_gemm, r.d2h_gemm);
  fmt::print("GEMM {0}x{0}x{0}: {1:.1f} GFLOP/s alone, {2:.1f} under copies both ways\n", r.size,
             r.gemm * 1e-9, r.gemm_copies * 1e-9);
  fmt::print("GEMM bits at other addresses and under copies: {}\n",
             r.gemm_bits_same ? "the same" : "DIFFERENT");
  ordered_json foreign = ordered_json::object();
  for (const auto& [phase, bytes] : r.foreign) {
    fmt::print("memory beside the arena, {:<24} {}\n", phase + ":", format_bytes(bytes));
    foreign[phase] = bytes;
  }
  return {{"copy_bytes", r.copy_bytes},
          {"h2d", r.h2d},
          {"d2h", r.d2h},
          {"h2d_both", r.h2d_both},
          {"d2h_both", r.d2h_both},
          {"h2d_gemm", r.h2d_gemm},
          {"d2h_gemm", r.d2h_gemm},
          {"gemm_size", r.size},
          {"gemm", r.gemm},
          {"gemm_under_copies", r.gemm_copies},
          {"gemm_bits_same", r.gemm_bits_same},
          {"foreign_bytes", foreign}};
}

ordered_json print_ops(const std::map<std::string, OpTime>& ops) {
  std::vector<std::pair<std::string, OpTime>> sorted(ops.begin(), ops.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  fmt::print("{:<18} {:>6} {:>12} {:>10} {:>10} {:>12}\n", "op", "calls", "ms a step", "GFLOP/s",
             "GB/s", "of roofline");
  ordered_json rows = ordered_json::array();
  for (const auto& [name, op] : sorted) {
    const double share = op.seconds > 0 ? op.roofline / op.seconds : 0;
    fmt::print("{:<18} {:>6} {:>12.3f} {:>10.1f} {:>10.1f} {:>10.1f} %\n", name, op.calls,
               1e3 * op.seconds, op.flops / op.seconds * 1e-9, op.bytes / op.seconds * 1e-9,
               100 * share);
    rows.push_back({{"op", name},
                    {"calls", op.calls},
                    {"seconds", op.seconds},
                    {"flops", op.flops},
                    {"bytes", op.bytes},
                    {"share_of_roofline", share}});
  }
  return rows;
}

}  // namespace

void bench_device(const Config& config, int threads, int64_t repeat, const std::string& json) {
  ordered_json out;
  {
    LocalCommunicator alone;
    const BackendChoice backend = choose_backend(config.hardware.backend, alone);
    if (!backend.note.empty()) fmt::print("{}\n", backend.note);
    const Workload workload(config, Topology{.threads = threads},
                            profile_for(backend, config.hardware, alone));
    const HardwareProfile& p = workload.input.profile;
    out["backend"] = backend.cuda ? "cuda" : "cpu";
    out["threads"] = threads;
    out["profile"] = {{"name", p.name},
                      {"device_bytes", p.device_bytes},
                      {"peak_f32", p.peak_f32},
                      {"peak_bf16", p.peak_bf16},
                      {"memory_bandwidth", p.memory_bandwidth}};
    const Dtype dtype = config.train.precision == Precision::bf16 ? Dtype::bf16 : Dtype::f32;
    out["precision"] = name_of(dtype);
    fmt::print("profile {}: {:.0f} GFLOP/s f32, {:.0f} bf16, {:.0f} GB/s memory\n", p.name,
               p.peak_f32 * 1e-9, p.peak_bf16 * 1e-9, p.memory_bandwidth * 1e-9);
    out["link"] = print_link(measure_link(workload, alone, backend, dtype, repeat));
  }
  Stepper stepper(config, threads);
  Session& session = stepper.session();
  stepper.step();
  std::vector<double> seconds;
  for (int64_t i = 0; i < repeat; ++i) seconds.push_back(stepper.step());
  const double s = median(seconds);
  Collector collected;
  session.device().record_times(Collector::sink, &collected);
  stepper.step();
  session.device().record_times(nullptr, nullptr);

  const Workload& workload = stepper.workload();
  const double mfu = workload.flops_per_step() / s / workload.peak_flops();
  const double tokens = static_cast<double>(workload.tokens_per_step) / s;
  const Plan& plan = session.report().plan;
  out["device"] = session.device().description();
  out["step"] = {{"seconds", s},
                 {"tokens_per_second", tokens},
                 {"mfu", mfu},
                 {"planned_seconds", plan.step_seconds},
                 {"device_bytes", plan.device.peak},
                 {"host_bytes", plan.host.peak},
                 {"foreign_bytes", session.device().foreign_bytes()}};
  fmt::print(
      "step on {}: {:.2f} ms (planned {:.2f}), {:.0f} tokens/s, MFU {:.1f} %, {} of device "
      "memory\n",
      session.device().description(), 1e3 * s, 1e3 * plan.step_seconds, tokens, 100 * mfu,
      format_bytes(plan.device.peak));
  out["ops"] = print_ops(by_op(collected, plan.lowered.set.programs[0], workload.input.profile));
  if (json.empty()) return;
  std::ofstream file(json, std::ios::trunc);
  file << out.dump(2) << '\n';
  if (!file.flush())
    bad_input("--json {}: cannot be written; name a file in a folder that exists", json);
}

}  // namespace spillway
