#include "train/bench_link.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "graph/op.h"
#include "train/lane_bench.h"

namespace spillway {
namespace {

constexpr int kCopies = 4;  // each way and round

// Two GEMMs with equal operands at different places, and a copy each way.
struct LinkProgram : LaneProgram {
  int gemm, moved_gemm, h2d, d2h;

  LinkProgram(int64_t size, int64_t copy_bytes, Dtype dtype, const WorkspaceRules& rules)
      : LaneProgram("link") {
    gemm = add_gemm("gemm", {dtype, Dims(size, size)}, rules);
    moved_gemm = add_gemm("moved gemm", {dtype, Dims(size, size)}, rules);
    const TensorType bytes = {Dtype::u8, Dims(copy_bytes)};
    h2d = copy("h2d", Lane::h2d, place("source", Tier::host, bytes),
               place("target", Tier::device, bytes));
    d2h = copy("d2h", Lane::d2h, place("source", Tier::device, bytes),
               place("target", Tier::host, bytes));
  }

 private:
  int add_gemm(const char* name, const TensorType& matrix, const WorkspaceRules& rules) {
    const Attrs attrs;
    const int64_t bytes = op_def(OpKind::matmul).workspace(attrs, {matrix, matrix}, rules);
    const ProgramOperand a = place("a", Tier::device, matrix), w = place("w", Tier::device, matrix),
                         y = place("y", Tier::device, matrix);
    const ProgramOperand workspace =
        bytes > 0 ? place("workspace", Tier::device, {Dtype::u8, Dims(bytes)}) : ProgramOperand();
    place("gap", Tier::device, {Dtype::u8, Dims(256 * 37)});
    return op(name, OpKind::matmul, attrs, {a, w}, {y}, workspace);
  }
};

// Equal random operands for both GEMMs.
void fill_operands(LaneBench& bench, const LinkProgram& link) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < 2; ++i) {
    const ProgramOperand& operand = link.instr(link.gemm).in[i];
    std::vector<char> data(static_cast<size_t>(operand.bytes()));
    for (int64_t e = 0; e < operand.dims.count(); ++e) {
      const float x = normal(rng);
      if (operand.dtype == Dtype::f32)
        std::memcpy(data.data() + 4 * e, &x, 4);
      else  // the upper half of an f32 is a bf16
        std::memcpy(data.data() + 2 * e, reinterpret_cast<const char*>(&x) + 2, 2);
    }
    for (const int which : {link.gemm, link.moved_gemm})
      bench.device().upload(bench.at(link.instr(which).in[i]), data.data(), operand.bytes());
  }
}

std::vector<char> result_of(LaneBench& bench, int which) {
  const ProgramOperand& y = bench.instr(which).out[0];
  std::vector<char> data(static_cast<size_t>(y.bytes()));
  bench.device().download(data.data(), bench.at(y), y.bytes());
  return data;
}

}  // namespace

LinkRates measure_link(const Workload& workload, Communicator& communicator,
                       const BackendChoice& backend, Dtype dtype, int64_t repeat) {
  const HardwareProfile& profile = workload.input.profile;
  LinkRates rates;
  // A GEMM of about 10 ms and copies of about 20 ms.
  const double peak = dtype == Dtype::bf16 ? profile.peak_bf16 : profile.peak_f32;
  rates.size = std::clamp<int64_t>(
      static_cast<int64_t>(std::cbrt(peak * profile.gemm_fraction * 0.01 / 2)) / 256 * 256, 256,
      8192);
  rates.copy_bytes = std::clamp<int64_t>(
      round_up(static_cast<int64_t>(profile.h2d_bandwidth * 0.02), int64_t{1} << 20),
      int64_t{4} << 20, int64_t{256} << 20);
  const LinkProgram link(rates.size, rates.copy_bytes, dtype, workload.input.rules);

  const auto device = make_device(workload, communicator, {.backend = backend});
  const auto phase = [&](const char* name) {
    rates.foreign.push_back({name, device->foreign_bytes()});
  };
  phase("device made");
  LaneBench bench(*device, link, phase);
  fill_operands(bench, link);

  const double flops = 2.0 * rates.size * rates.size * rates.size;
  const auto bytes = static_cast<double>(rates.copy_bytes);
  const Instr &gemm = link.instr(link.gemm), &h2d = link.instr(link.h2d),
              &d2h = link.instr(link.d2h);
  const auto copies = [&](bool in, bool out) {
    for (int i = 0; i < kCopies; ++i) {
      if (in) bench.issue(link.h2d);
      if (out) bench.issue(link.d2h);
    }
  };
  const auto keep = [](double& best, double value) { best = std::max(best, value); };
  for (const int which : {link.gemm, link.moved_gemm}) bench.issue(which);
  copies(true, true);
  device->synchronise_all();
  const std::vector<char> expected = result_of(bench, link.gemm);
  rates.gemm_bits_same = true;
  for (int64_t r = 0; r < repeat; ++r) {
    auto times = bench.timed([&] { copies(true, false); });
    keep(rates.h2d, work_rate(times, h2d, bytes));
    times = bench.timed([&] { copies(false, true); });
    keep(rates.d2h, work_rate(times, d2h, bytes));
    times = bench.timed([&] { copies(true, true); });
    keep(rates.h2d_both, work_rate(times, h2d, bytes));
    keep(rates.d2h_both, work_rate(times, d2h, bytes));
    times = bench.timed([&] {
      for (int i = 0; i < 4; ++i) bench.issue(link.gemm);
    });
    keep(rates.gemm, work_rate(times, gemm, flops));

    // GEMMs for twice as long as the copies should take; the first one has moved.
    const double seconds = kCopies * bytes / std::min(rates.h2d_both, rates.d2h_both);
    const int gemms =
        std::clamp(static_cast<int>(std::ceil(2 * seconds * rates.gemm / flops)), 4, 256);
    times = bench.timed([&] {
      bench.issue(link.moved_gemm);
      for (int i = 0; i < gemms; ++i) bench.issue(link.gemm);
      copies(true, true);
    });
    keep(rates.h2d_gemm, work_rate(times, h2d, bytes));
    keep(rates.d2h_gemm, work_rate(times, d2h, bytes));
    keep(rates.gemm_copies, op_rate_during(times, flops, {&h2d, &d2h}));
    for (const int which : {link.gemm, link.moved_gemm})
      rates.gemm_bits_same &= result_of(bench, which) == expected;
  }
  phase("everything run");
  return rates;
}

}  // namespace spillway
