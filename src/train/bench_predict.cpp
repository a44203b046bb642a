#include "train/bench_predict.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/quantile.h"
#include "graph/op.h"
#include "train/drawn_model.h"
#include "train/stepper.h"

namespace spillway {
namespace {

constexpr double kSmallShare = 0.6;  // of the device memory of all resident
constexpr double kHidden = 1.02;  // times all resident: where a bound leaves all transfers hidden

struct Draw {
  std::string what;
  Config config;
};

// One of the models, with budget and link; the budget is a place between minimum and all resident.
class Draws {
 public:
  Draws(const Config& base, int threads, uint64_t seed)
      : base_(base), threads_(threads), random_(seed) {}

  Draw next() {
    for (;;) {
      Config config = model();
      const Workload w(config, Topology{.threads = threads_});
      // Long enough to be measured, short enough to be measured often.
      const double seconds = w.flops_per_step() / w.peak_flops();
      if (seconds < 0.02 || seconds > 0.25) continue;
      const PlanReport whole = make_plan(w.input);
      const int64_t least = whole.device_minimum_bytes, all = whole.all_resident_device_bytes;
      // Every other case within the share of memory in which transfers shall hide.
      double most = static_cast<double>(all);
      if (++drawn_ % 2 == 0) most = std::max(kSmallShare * most, static_cast<double>(least));
      config.memory.device = static_cast<int64_t>(std::uniform_real_distribution<double>(
          static_cast<double>(least), std::nextafter(most, HUGE_VAL))(random_));
      const ModelConfig& m = config.model;
      return {fmt::format("{} {}x{} {}x{}x{} {}", m.family == Family::llama ? "llama" : "gpt2",
                          m.layers, m.hidden, w.spec.micro_batches, config.train.micro_batch,
                          m.context, config.train.precision == Precision::bf16 ? "bf16" : "f32"),
              config};
    }
  }

 private:
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[random_() % values.size()];
  }

  Config model() {
    DrawnModel m;
    m.llama = of({false, true});
    m.bf16 = of({false, true});
    m.layers = of<int64_t>({3, 4, 6, 8, 12});
    m.hidden = of<int64_t>({128, 192, 256, 384, 512});
    m.context = of<int64_t>({64, 128, 256});
    m.vocab = of<int64_t>({256, 1024, 4096});
    m.micro_batch = of<int64_t>({1, 2, 4});
    m.micro_batches = of<int64_t>({1, 2, 4, 8});
    Config c = config_of(m, base_, 1);
    c.hardware.link =
        std::exp(std::uniform_real_distribution<double>(std::log(0.25e9), std::log(2e9))(random_));
    return c;
  }

  Config base_;
  int threads_, drawn_ = 0;
  std::mt19937_64 random_;
};

Config resident(Config config) {
  config.offload = config.recompute = Mode::off;
  config.memory.device = -1;
  return config;
}

// Seconds of each kind of op, copies by their lane, in a step.
struct Spent {
  std::map<std::string, double> planned, measured;

  void add(Stepper& stepper) {
    const Program& program = stepper.session().report().plan.lowered.set.programs[0];
    std::map<std::string, std::string> kind;  // by the instruction's name
    size_t instances = 0;
    for (const Segment& s : program.segments)
      for (InstrId i = s.begin; i < s.end; ++i) {
        const Instr& instr = program.instrs[i];
        const std::string k =
            instr.kind == InstrKind::op ? std::string(op_def(instr.op).name) : name_of(instr.lane);
        kind[instr.name] = k;
        planned[k] += 1e-6 * instr.planned_us * s.trip;
        instances += static_cast<size_t>(s.trip);
      }
    stepper.session().recorder().capture(instances);
    stepper.step();
    for (const TraceEvent& e : stepper.session().recorder().captured())
      if (const auto k = kind.find(e.name); k != kind.end()) measured[k->second] += e.end - e.begin;
  }
};

void print_ratios(const std::string& of, const std::vector<double>& ratios) {
  if (!ratios.empty())
    fmt::print("{} cases {}: {:.3f} median, {:.3f} at the 90th percentile\n", ratios.size(), of,
               median(ratios), quantile(ratios, 0.9));
}

struct Measured {
  Draw draw;
  std::unique_ptr<Stepper> planned, resident;
  std::vector<double> seconds, resident_seconds;
};

}  // namespace

void bench_predict(const Config& config, int threads, int64_t cases, int64_t repeat,
                   uint64_t seed) {
  Draws draws(config, threads, seed);
  std::vector<Measured> all;
  for (int64_t i = 0; i < cases; ++i) {
    Measured m;
    m.draw = draws.next();
    m.planned = std::make_unique<Stepper>(m.draw.config, threads);
    m.resident = std::make_unique<Stepper>(resident(m.draw.config), threads);
    all.push_back(std::move(m));
  }
  for (int64_t r = 0; r <= repeat; ++r)
    for (Measured& m : all) {
      const double seconds = m.planned->step(), whole = m.resident->step();
      if (r == 0) continue;  // pages and caches are warm from here on
      m.seconds.push_back(seconds);
      m.resident_seconds.push_back(whole);
    }
  fmt::print("profile {}, {} compute thread{}, seed {}\n", config.hardware.profile, threads,
             threads == 1 ? "" : "s", seed);
  fmt::print("{:<30} {:>8} {:>8} {:>11} {:>11} {:>8} {:>8} {:>11} {:>10} {:>10}\n", "model", "link",
             "memory %", "predicted", "measured", "error %", "spread %", "bound", "resident",
             "error %");
  std::vector<double> errors, spreads, resident_errors, hidden, exposed;
  Spent spent;
  for (Measured& m : all) {
    const PlanReport& r = m.planned->session().report();
    const PlanReport& whole = m.resident->session().report();
    const double seconds = median(m.seconds), plain = median(m.resident_seconds);
    errors.push_back(std::abs(r.plan.step_seconds / seconds - 1));
    resident_errors.push_back(std::abs(whole.plan.step_seconds / plain - 1));
    spreads.push_back((quantile(m.seconds, 0.75) - quantile(m.seconds, 0.25)) / seconds);
    fmt::print(
        "{:<30} {:>8} {:>8.0f} {:>8.2f} ms {:>8.2f} ms {:>+8.1f} {:>8.1f} {:>8.2f} ms "
        "{:>7.2f} ms {:>+10.1f}\n",
        m.draw.what, fmt::format("{:.2f}", 1e-9 * m.draw.config.hardware.link),
        100.0 * static_cast<double>(r.plan.device.peak) /
            static_cast<double>(whole.plan.device.peak),
        1e3 * r.plan.step_seconds, 1e3 * seconds, 100 * (r.plan.step_seconds / seconds - 1),
        100 * spreads.back(), 1e3 * r.bound_seconds, 1e3 * plain,
        100 * (whole.plan.step_seconds / plain - 1));
    spent.add(*m.planned);
    const bool small = static_cast<double>(r.plan.device.peak) <=
                       kSmallShare * static_cast<double>(whole.plan.device.peak);
    if (r.bound_seconds > kHidden * whole.plan.step_seconds)
      exposed.push_back(seconds / r.bound_seconds);
    else if (small && r.bound_seconds > 0)
      hidden.push_back(seconds / plain);
  }
  fmt::print("{:<22} {:>11} {:>11} {:>7}\n", "all cases, one step", "predicted", "measured",
             "ratio");
  for (const auto& [kind, seconds] : spent.measured)
    fmt::print("{:<22} {:>8.2f} ms {:>8.2f} ms {:>7.2f}\n", kind, 1e3 * spent.planned[kind],
               1e3 * seconds, spent.planned[kind] / seconds);
  fmt::print(
      "{} cases: error {:.1f} % median, {:.1f} % at the 90th percentile; all resident {:.1f} and "
      "{:.1f} %; run-to-run spread (quartiles) {:.1f} % median\n",
      cases, 100 * median(errors), 100 * quantile(errors, 0.9), 100 * median(resident_errors),
      100 * quantile(resident_errors, 0.9), 100 * median(spreads));
  print_ratios(
      fmt::format("at most {:.0f} % of the memory where the bound hides all transfers, measured "
                  "step by all resident",
                  100 * kSmallShare),
      hidden);
  print_ratios("where it cannot, measured step by the bound", exposed);
}

}  // namespace spillway
