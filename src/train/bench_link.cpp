#include "train/bench_link.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <random>

#include "graph/op.h"

namespace spillway {
namespace {

constexpr int kCopies = 4;  // each way and round

// Two GEMMs with equal operands at different places, and a copy each way.
struct LinkProgram {
  enum { gemm, moved_gemm, h2d, d2h };
  ProgramSet set;
  ArenaLayout layout;
  const Program& program() const { return set.programs[0]; }

  LinkProgram(int64_t size, int64_t copy_bytes, Dtype dtype, const WorkspaceRules& rules) {
    Program& p = set.programs.emplace_back();
    p.name = "link";
    p.attrs.emplace_back();
    const TensorType matrix = {dtype, Dims(size, size)};
    const int64_t workspace = op_def(OpKind::matmul).workspace(p.attrs[0], {matrix, matrix}, rules);
    for (const char* name : {"gemm", "moved gemm"}) {
      Instr& instr = p.instrs.emplace_back();
      instr.name = name;
      instr.op = OpKind::matmul;
      instr.attrs = 0;
      for (const char* operand : {"a", "w"})
        instr.in.push_back(place(operand, Tier::device, matrix));
      instr.out.push_back(place("y", Tier::device, matrix));
      if (workspace > 0)
        instr.workspace = place("workspace", Tier::device, {Dtype::u8, Dims(workspace)});
      place("gap", Tier::device, {Dtype::u8, Dims(256 * 37)});
    }
    const TensorType bytes = {Dtype::u8, Dims(copy_bytes)};
    for (const Lane lane : {Lane::h2d, Lane::d2h}) {
      const bool in = lane == Lane::h2d;
      Instr& instr = p.instrs.emplace_back();
      instr.kind = InstrKind::copy;
      instr.lane = lane;
      instr.name = in ? "h2d" : "d2h";
      instr.in = {place("source", in ? Tier::host : Tier::device, bytes)};
      instr.out = {place("target", in ? Tier::device : Tier::host, bytes)};
    }
  }

 private:
  ProgramOperand place(const char* name, Tier tier, const TensorType& type) {
    ProgramOperand operand;
    operand.buffer = static_cast<BufferId>(set.buffers.size());
    operand.dtype = type.dtype;
    operand.dims = type.dims;
    Buffer& buffer = set.buffers.emplace_back();
    buffer.name = name;
    buffer.tier = tier;
    buffer.bytes = operand.bytes();
    int64_t& end = layout.tier_bytes[static_cast<int>(tier)];
    layout.offset.push_back(end);
    layout.version_stride.push_back(round_up(buffer.bytes, 256));
    end += layout.version_stride.back();
    return operand;
  }
};

struct Interval {
  const Instr* instr;
  double begin, end;
};

class Bench {
 public:
  Bench(Device& device, const LinkProgram& link) : device_(device), link_(link) {
    for (int t = 0; t < kTierCount; ++t)
      base_[t] =
          static_cast<char*>(device.reserve(static_cast<Tier>(t), link.layout.tier_bytes[t]));
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    const Instr& gemm = instr(LinkProgram::gemm);
    for (int i = 0; i < 2; ++i) {
      std::vector<char> data(gemm.in[i].bytes());
      for (int64_t e = 0; e < gemm.in[i].dims.count(); ++e) {
        const float x = normal(rng);
        if (gemm.in[i].dtype == Dtype::f32)
          std::memcpy(data.data() + 4 * e, &x, 4);
        else  // the upper half of an f32 is a bf16
          std::memcpy(data.data() + 2 * e, reinterpret_cast<const char*>(&x) + 2, 2);
      }
      for (const int which : {LinkProgram::gemm, LinkProgram::moved_gemm})
        device.upload(at(instr(which).in[i]), data.data(), instr(which).in[i].bytes());
    }
    for (const int which : {LinkProgram::h2d, LinkProgram::d2h})
      std::memset(base_[1] + offset(host_side(which)), 1, host_side(which).bytes());
  }

  const Instr& instr(int which) const { return link_.program().instrs[which]; }

  void launch(int which) {
    const Instr& gemm = instr(which);
    KernelArgs args;
    args.attrs = &link_.program().attrs[gemm.attrs];
    for (const ProgramOperand& o : gemm.in) args.in[args.in_count++] = {at(o), o.dtype, o.dims};
    for (const ProgramOperand& o : gemm.out) args.out[args.out_count++] = {at(o), o.dtype, o.dims};
    if (gemm.workspace.buffer >= 0) {
      args.workspace = at(gemm.workspace);
      args.workspace_bytes = gemm.workspace.bytes();
    }
    device_.launch(Lane::compute, gemm.op, args, &gemm);
  }

  void copy(int which) {
    const Instr& c = instr(which);
    device_.copy(c.lane, at(c.out[0]), at(c.in[0]), c.in[0].bytes(), &c);
  }

  // What `issue` gives to the lanes, timed on the device.
  template <class Issue>
  std::vector<Interval> timed(Issue&& issue) {
    intervals_.clear();
    device_.record_times(
        [](void* context, Lane, const Instr* instr, const LaneTimes& times) {
          Bench& bench = *static_cast<Bench*>(context);
          const std::lock_guard lock(bench.mutex_);
          bench.intervals_.push_back({instr, times.begin, times.end});
        },
        this);
    issue();
    device_.synchronise_all();
    device_.record_times(nullptr, nullptr);
    return intervals_;
  }

  std::vector<char> result(int which) {
    const ProgramOperand& y = instr(which).out[0];
    std::vector<char> data(y.bytes());
    device_.download(data.data(), at(y), y.bytes());
    return data;
  }

 private:
  const ProgramOperand& host_side(int which) const {
    return which == LinkProgram::h2d ? instr(which).in[0] : instr(which).out[0];
  }
  int64_t offset(const ProgramOperand& o) const { return link_.layout.offset[o.buffer]; }
  char* at(const ProgramOperand& o) const {
    return base_[static_cast<int>(link_.set.buffers[o.buffer].tier)] + offset(o);
  }

  Device& device_;
  const LinkProgram& link_;
  char* base_[kTierCount];
  std::mutex mutex_;
  std::vector<Interval> intervals_;
};

// Work of `instr` a second, from its first begin to its last end.
double rate(const std::vector<Interval>& all, const Instr& instr, double work) {
  double begin = HUGE_VAL, end = 0;
  int count = 0;
  for (const Interval& i : all)
    if (i.instr == &instr) {
      begin = std::min(begin, i.begin);
      end = std::max(end, i.end);
      ++count;
    }
  return end > begin ? count * work / (end - begin) : 0;
}

// `work` of every op a second while copies ran, begun and ended ones by their part.
double rate_under_copies(const std::vector<Interval>& all, double work) {
  double begin = HUGE_VAL, end = 0, done = 0;
  for (const Interval& i : all)
    if (i.instr->kind == InstrKind::copy) {
      begin = std::min(begin, i.begin);
      end = std::max(end, i.end);
    }
  for (const Interval& i : all)
    if (i.instr->kind == InstrKind::op && i.end > i.begin)
      done += std::max(0.0, std::min(end, i.end) - std::max(begin, i.begin)) / (i.end - i.begin);
  return end > begin ? done * work / (end - begin) : 0;
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
  device->connect(link.set);
  phase("communicators connected");
  device->warm_up(link.set, link.layout);
  phase("kernels warmed up");
  Bench bench(*device, link);
  phase("arenas reserved");

  const double flops = 2.0 * rates.size * rates.size * rates.size;
  const auto bytes = static_cast<double>(rates.copy_bytes);
  const Instr &gemm = bench.instr(LinkProgram::gemm), &h2d = bench.instr(LinkProgram::h2d),
              &d2h = bench.instr(LinkProgram::d2h);
  const auto copies = [&](bool in, bool out) {
    for (int i = 0; i < kCopies; ++i) {
      if (in) bench.copy(LinkProgram::h2d);
      if (out) bench.copy(LinkProgram::d2h);
    }
  };
  const auto keep = [](double& best, double value) { best = std::max(best, value); };
  for (const int which : {LinkProgram::gemm, LinkProgram::moved_gemm}) bench.launch(which);
  copies(true, true);
  device->synchronise_all();
  const std::vector<char> expected = bench.result(LinkProgram::gemm);
  rates.gemm_bits_same = true;
  for (int64_t r = 0; r < repeat; ++r) {
    auto times = bench.timed([&] { copies(true, false); });
    keep(rates.h2d, rate(times, h2d, bytes));
    times = bench.timed([&] { copies(false, true); });
    keep(rates.d2h, rate(times, d2h, bytes));
    times = bench.timed([&] { copies(true, true); });
    keep(rates.h2d_both, rate(times, h2d, bytes));
    keep(rates.d2h_both, rate(times, d2h, bytes));
    times = bench.timed([&] {
      for (int i = 0; i < 4; ++i) bench.launch(LinkProgram::gemm);
    });
    keep(rates.gemm, rate(times, gemm, flops));

    // GEMMs for twice as long as the copies should take; the first one has moved.
    const double seconds = kCopies * bytes / std::min(rates.h2d_both, rates.d2h_both);
    const int gemms =
        std::clamp(static_cast<int>(std::ceil(2 * seconds * rates.gemm / flops)), 4, 256);
    times = bench.timed([&] {
      bench.launch(LinkProgram::moved_gemm);
      for (int i = 0; i < gemms; ++i) bench.launch(LinkProgram::gemm);
      copies(true, true);
    });
    keep(rates.h2d_gemm, rate(times, h2d, bytes));
    keep(rates.d2h_gemm, rate(times, d2h, bytes));
    keep(rates.gemm_copies, rate_under_copies(times, flops));
    for (const int which : {LinkProgram::gemm, LinkProgram::moved_gemm})
      rates.gemm_bits_same &= bench.result(which) == expected;
  }
  phase("everything run");
  return rates;
}

}  // namespace spillway
