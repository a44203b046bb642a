#include "train/calibrate_steps.h"

#include <algorithm>
#include <map>
#include <string>

#include "base/quantile.h"
#include "program/op_cost.h"
#include "train/drawn_model.h"
#include "train/op_fit.h"
#include "train/stepper.h"
#include "train/together.h"

namespace spillway {
namespace {

constexpr int kSteps = 3;              // measured; medians over them and over like instructions
constexpr double kStepSeconds = 0.06;  // of a step at most, by the profile

// Instructions with the same cost are measured as one.
struct Kind {
  std::string op;
  bool bf16 = false;
  double flops = 0, bytes = 0;
  auto operator<=>(const Kind&) const = default;
};

// What ran on the compute lane, in the lane's own thread or the issuing one.
struct Collected {
  std::vector<std::pair<const Instr*, double>> seconds;

  static void sink(void* context, Lane lane, const Instr* instr, const LaneTimes& times) {
    if (lane == Lane::compute && instr->kind == InstrKind::op)
      static_cast<Collected*>(context)->seconds.push_back({instr, times.end - times.begin});
  }
};

Kind kind_of(const Program& program, const Instr& instr, bool bf16) {
  const Cost cost = op_cost(program, instr);
  return {std::string(op_def(instr.op).name), bf16, cost.flops, cost.bytes};
}

std::vector<DrawnModel> models(const HardwareProfile& profile) {
  std::vector<DrawnModel> result;
  for (const bool llama : {false, true})
    for (const bool bf16 : {false, true}) {
      const double rate = (bf16 ? profile.peak_bf16 : profile.peak_f32) * profile.gemm_fraction;
      for (const int64_t hidden : {128, 256, 512, 1024, 2048, 4096})
        for (const auto& [context, micro_batch, vocab] :
             {std::tuple<int64_t, int64_t, int64_t>{64, 1, 512}, {128, 2, 2048}, {256, 4, 4096}}) {
          DrawnModel m{.llama = llama, .bf16 = bf16, .layers = 2, .hidden = hidden};
          m.context = context;
          m.micro_batch = micro_batch;
          m.vocab = vocab;
          const auto h = static_cast<double>(hidden);
          const double flops =
              6 * static_cast<double>(context * micro_batch) *
              (12 * h * h * static_cast<double>(m.layers) + h * static_cast<double>(vocab));
          if (flops / rate <= kStepSeconds) result.push_back(m);
        }
    }
  return result;
}

}  // namespace

std::vector<OpRate> measure_op_rates(const Config& config, const Topology& topology,
                                     const HardwareProfile& profile, const BackendChoice& backend,
                                     Communicator& communicator) {
  std::map<Kind, std::vector<double>> times;
  std::vector<double> gaps;
  for (const DrawnModel& m : models(profile)) {
    Config drawn = config_of(m, config, topology.ranks);
    drawn.offload = drawn.recompute = Mode::off;
    Stepper stepper(drawn, topology, profile, backend, communicator);
    Device& device = stepper.session().device();
    const Program& program = stepper.session().report().plan.lowered.set.programs[0];
    stepper.step();
    Collected collected;
    collected.seconds.reserve(size_t{1} << 16);
    device.record_times(Collected::sink, &collected);
    double steps = 0;
    for (int i = 0; i < kSteps; ++i) steps += stepper.step();
    device.record_times(nullptr, nullptr);
    double busy = 0;
    for (const auto& [instr, seconds] : collected.seconds) {
      times[kind_of(program, *instr, m.bf16)].push_back(seconds);
      busy += seconds;
    }
    gaps.push_back((steps - busy) / static_cast<double>(collected.seconds.size()));
  }
  const double gap = topology.ranks > 1 ? 0 : std::max(0.0, median(gaps));
  std::map<std::pair<std::string, bool>, std::vector<OpSample>> samples;
  for (const auto& [kind, seconds] : times) {
    samples[{kind.op, kind.bf16}].push_back(
        {kind.flops, kind.bytes, highest(communicator, std::max(1e-9, median(seconds)))});
  }
  std::vector<OpRate> rates;
  for (const auto& [op, of] : samples) {
    rates.push_back(fit_op_rate(of));
    rates.back().seconds += gap;
    rates.back().op = op.first;
    rates.back().bf16 = op.second;
  }
  return rates;
}

}  // namespace spillway
