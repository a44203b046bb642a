#include "train/calibrate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/quantile.h"
#include "config/hardware.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/table.h"
#include "program/op_cost.h"
#include "runtime/backend.h"
#include "runtime/launch.h"
#include "train/calibrate_ops.h"
#include "train/calibrate_steps.h"
#include "train/session.h"
#include "train/together.h"

namespace spillway {
namespace {

constexpr int kSamples = 5;              // of what is measured; their median counts
constexpr double kSampleSeconds = 0.01;  // of device time that a sample takes at least
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGemmSizes[] = {16, 64, 256, 768, 1536};
constexpr int64_t kExchangeBytes = 8 * kMiB;

// Bytes of one copy that takes some 10 ms.
int64_t copy_bytes_for(const HardwareProfile& base) {
  const double rate = std::min(base.h2d_bandwidth, base.d2h_bandwidth);
  return std::clamp(static_cast<int64_t>(rate * 0.01) / kMiB * kMiB, kMiB, 256 * kMiB);
}

class Calibration {
 public:
  Calibration(const Config& config, Communicator& communicator)
      : communicator_(communicator),
        backend_(choose_backend(config.hardware.backend, communicator)),
        threads_(claim_cores(static_cast<int>(config.train.threads), communicator).threads),
        workload_(config, topology(), profile_for(backend_, config.hardware, communicator)),
        base_(workload_.input.profile),
        ops_(workload_.input.rules) {
    profile_ = base_;
    add_instructions();
    device_ = make_device(workload_, communicator, {.backend = backend_});
    bench_ = std::make_unique<LaneBench>(*device_, ops_);
    ops_.fill(*bench_);
  }

  void run() {
    measure_launch();
    measure_products();
    measure_memory();
    measure_copies();
    measure_exchanges();
    measure_update();
    count_node();
    measure_steps();
  }

  const HardwareProfile& profile() const { return profile_; }
  const std::map<std::string, std::string>& sources() const { return sources_; }
  const HardwareProfile& base() const { return base_; }
  std::string machine() const {
    if (!machine_.empty()) return machine_;
    return fmt::format("{}, {} rank{} on {} node{}, {} compute thread{} each, link {}",
                       device_->description(), communicator_.size(), plural(communicator_.size()),
                       communicator_.node_count(), plural(communicator_.node_count()), threads_,
                       plural(threads_), link_text());
  }

 private:
  static const char* plural(int count) { return count == 1 ? "" : "s"; }
  std::string link_text() const {
    const double link = workload_.config.hardware.link;
    return link > 0 ? "paced at " + format_bytes(static_cast<int64_t>(link)) + "/s" : "unpaced";
  }

  Topology topology() const {
    return {.rank = communicator_.rank(),
            .ranks = communicator_.size(),
            .ranks_on_node = communicator_.ranks_on_node(),
            .threads = threads_};
  }

  void add_instructions() {
    tiny_ = ops_.add(add_spec(64));
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
      for (const int64_t k : kGemmSizes)
        gemms_.push_back(ops_.add(matmul_spec(dtype, kGemmSizes[4], kGemmSizes[4], k)));
      for (const bool backward : {false, true})
        attentions_.push_back(ops_.add(attention_spec(dtype, backward, 512, 64, 8)));
    }
    stream_ = ops_.add(add_spec(4 * kMiB));
    ops_.finish();
    const TensorType large = {Dtype::u8, Dims(copy_bytes_for(base_))};
    const ProgramOperand host_in = ops_.place("copied in", Tier::host, large),
                         device_in = ops_.place("copied in", Tier::device, large),
                         host_out = ops_.place("copied out", Tier::host, large),
                         device_out = ops_.place("copied out", Tier::device, large);
    h2d_ = ops_.copy("h2d", Lane::h2d, host_in, device_in);
    d2h_ = ops_.copy("d2h", Lane::d2h, device_out, host_out);
    const TensorType small = {Dtype::u8, Dims(256)};
    small_h2d_ = ops_.copy("small h2d", Lane::h2d, ops_.place("small", Tier::host, small),
                           ops_.place("small", Tier::device, small));
    // Every rank passes bytes on to the next of its node, and to the same place of the next node.
    const int rank = communicator_.rank(), on_node = communicator_.ranks_on_node(),
              ranks = communicator_.size(), node = rank / on_node * on_node;
    if (on_node > 1) {
      near_ = exchange((rank - node + 1) % on_node + node,
                       (rank - node + on_node - 1) % on_node + node, kExchangeBytes);
      small_near_ = exchange((rank - node + 1) % on_node + node,
                             (rank - node + on_node - 1) % on_node + node, 256);
    }
    if (communicator_.node_count() > 1)
      far_ = exchange((rank + on_node) % ranks, (rank + ranks - on_node) % ranks, kExchangeBytes);
  }

  int exchange(int to, int from, int64_t bytes) {
    const TensorType type = {Dtype::u8, Dims(bytes)};
    return ops_.exchange("exchange", to, ops_.place("sent", Tier::device, type), from,
                         ops_.place("received", Tier::device, type));
  }

  void set(const char* key, const std::string& how) {
    sources_[key] = fmt::format("measured by train calibrate: {}", how);
  }
  double slowest_rate(double rate) { return lowest(communicator_, rate); }
  double longest(double seconds) { return highest(communicator_, seconds); }

  // Median over samples of what `sample` returns, all ranks beginning each together.
  template <class Sample>
  double sampled(Sample&& sample) {
    std::vector<double> values;
    for (int i = 0; i < kSamples; ++i) {
      communicator_.barrier();
      values.push_back(sample());
    }
    return median(values);
  }

  // Seconds from the begin of one run of an instruction to that of the next, back to back.
  double period(int which, int runs) {
    const std::vector<TimedRun> times = bench_->timed([&] {
      for (int i = 0; i <= runs; ++i) bench_->issue(which, shift(which, i));
    });
    std::vector<double> periods;
    for (size_t i = 1; i < times.size(); ++i)
      periods.push_back(times[i].begin - times[i - 1].begin);
    return median(periods);
  }
  int64_t shift(int which, int run) const {
    return bench_->instr(which).kind == InstrKind::op ? ops_.shift(which, run) : 0;
  }
  double seconds_of(int which) {
    // Agreed, since an exchange runs as often on every rank.
    const double once = std::max(1e-7, longest(period(which, 2)));
    const int runs = std::clamp(static_cast<int>(kSampleSeconds / once), 2, 2000);
    return longest(sampled([&] { return period(which, runs); }));
  }
  // … beside the fixed cost of an instruction.
  double work_seconds(int which) {
    const double seconds = seconds_of(which);
    return std::max(seconds - profile_.launch_seconds, 0.01 * seconds);
  }
  Cost cost_of(int which) const { return op_cost(ops_.program(), bench_->instr(which)); }

  void measure_launch() {
    profile_.launch_seconds = seconds_of(tiny_);
    set("launch_seconds", "an op of 64 elements, back to back");
  }

  // On CUDA the peaks are the device's own; on the CPU the fastest product stands for them.
  void measure_products() {
    size_t at_gemm = 0, at_attention = 0;
    double fraction = 1, forward = 1, backward = 1;
    for (const bool bf16 : {false, true}) {
      std::vector<double> rates;
      for (size_t i = 0; i < std::size(kGemmSizes); ++i, ++at_gemm)
        rates.push_back(cost_of(gemms_[at_gemm]).flops / work_seconds(gemms_[at_gemm]));
      const double best = *std::max_element(rates.begin(), rates.end());
      double& peak = bf16 ? profile_.peak_bf16 : profile_.peak_f32;
      if (!backend_.cuda || peak < best) peak = best;
      if (!backend_.cuda)
        set(bf16 ? "peak_bf16" : "peak_f32", "the fastest product, so that MFU is a share of it");
      fraction = bf16 == uses_bf16() ? best / peak : fraction;
      auto& shares = bf16 ? profile_.gemm_bf16_shares : profile_.gemm_f32_shares;
      shares.clear();
      for (size_t i = 0; i < rates.size(); ++i)
        shares.push_back({static_cast<double>(kGemmSizes[i]), rates[i] / best});
      for (double* share : {&forward, &backward}) {
        const int which = attentions_[at_attention++];
        const double rate = cost_of(which).flops / work_seconds(which);
        if (bf16 == uses_bf16()) *share = std::min(1.0, rate / peak);
      }
    }
    profile_.gemm_fraction = fraction;
    profile_.attention_fraction = forward;
    profile_.attention_backward_fraction = backward;
    set("gemm_fraction", "the fastest product of the config's precision");
    set("gemm_f32_shares", fmt::format("products of {0} × {0} × size", kGemmSizes[4]));
    sources_["gemm_bf16_shares"] = sources_["gemm_f32_shares"];
    set("attention_fraction", "512 tokens, 8 heads of 64, in the config's precision");
    sources_["attention_backward_fraction"] = sources_["attention_fraction"];
  }
  bool uses_bf16() const { return workload_.input.bf16; }

  void measure_memory() {
    const double rate = cost_of(stream_).bytes / work_seconds(stream_);
    profile_.memory_bandwidth = rate;
    profile_.memory_fraction = 1;
    set("memory_bandwidth", "a sum of two vectors of 16 MiB, all ranks at once");
    set("memory_fraction", "memory_bandwidth is what such an op sustains");
    if (!backend_.cuda) {
      profile_.host_bandwidth = rate * communicator_.ranks_on_node();
      set("host_bandwidth", "memory_bandwidth of all ranks of a node together");
    }
  }

  struct CopyRates {
    double h2d = 0, d2h = 0, both = 0;
  };
  // This rank's rates while it copies the ways that are asked for.
  CopyRates copy_rates(bool in, bool out) {
    constexpr int kCopies = 3;
    const auto bytes = static_cast<double>(bench_->instr(h2d_).in[0].bytes());
    const auto times = bench_->timed([&] {
      for (int i = 0; i < kCopies; ++i) {
        if (in) bench_->issue(h2d_);
        if (out) bench_->issue(d2h_);
      }
    });
    const CopyRates r = {work_rate(times, bench_->instr(h2d_), bytes),
                         work_rate(times, bench_->instr(d2h_), bytes), 0};
    return {r.h2d, r.d2h, r.h2d + r.d2h};
  }

  void measure_copies() {
    copy_rates(true, true);  // pages and pinned memory are touched
    const auto all_ranks = [&](bool in, bool out, double CopyRates::*which) {
      return slowest_rate(sampled([&] { return copy_rates(in, out).*which; }));
    };
    // One rank of each node copies while the others wait at the next barrier.
    const auto alone = [&](bool in, bool out, double CopyRates::*which) {
      const bool first = communicator_.rank_on_node() == 0;
      const double rate = sampled([&] { return first ? copy_rates(in, out).*which : HUGE_VAL; });
      return slowest_rate(rate);
    };
    profile_.h2d_alone_bandwidth = alone(true, false, &CopyRates::h2d);
    profile_.d2h_alone_bandwidth = alone(false, true, &CopyRates::d2h);
    profile_.both_ways_bandwidth = alone(true, true, &CopyRates::both);
    profile_.h2d_bandwidth = all_ranks(true, true, &CopyRates::h2d);
    profile_.d2h_bandwidth = all_ranks(true, true, &CopyRates::d2h);
    set("h2d_alone_bandwidth", "one rank of a node copies one way");
    set("d2h_alone_bandwidth", "one rank of a node copies one way");
    set("both_ways_bandwidth", "one rank of a node copies both ways");
    set("h2d_bandwidth", "all ranks copy both ways");
    set("d2h_bandwidth", "all ranks copy both ways");
    profile_.devices_per_uplink = 1;
    profile_.uplink_bandwidth =
        std::max(profile_.h2d_alone_bandwidth, profile_.d2h_alone_bandwidth);
    set("devices_per_uplink", "what ranks share shows in h2d_bandwidth and d2h_bandwidth");
    set("uplink_bandwidth", "as the faster of the two ways alone");
    profile_.copy_seconds = longest(sampled([&] { return handover_seconds(); }));
    set("copy_seconds", "a copy of 256 bytes that an op waits for and that waits for an op");
  }

  // An op and a small copy take turns; what a turn takes beside the op.
  double handover_seconds() {
    constexpr int kTurns = 50;
    const std::vector<TimedRun> times = bench_->timed([&] {
      Ticket copied = 0;
      for (int i = 0; i < kTurns; ++i) {
        if (copied > 0) device_->wait(Lane::compute, Lane::h2d, copied);
        const Ticket computed = bench_->issue(tiny_);
        device_->signal(Lane::compute);
        device_->wait(Lane::h2d, Lane::compute, computed);
        copied = bench_->issue(small_h2d_);
        device_->signal(Lane::h2d);
      }
    });
    std::vector<double> begins, turns;
    for (const TimedRun& i : times)
      if (i.instr == &bench_->instr(tiny_)) begins.push_back(i.begin);
    for (size_t i = 1; i < begins.size(); ++i) turns.push_back(begins[i] - begins[i - 1]);
    const double turn = median(turns);
    return std::max(turn - profile_.launch_seconds, 0.1 * turn);
  }

  void measure_exchanges() {
    if (near_ >= 0) {
      const double seconds = seconds_of(near_);
      profile_.exchange_seconds = seconds_of(small_near_);
      profile_.intra_node_bandwidth =
          kExchangeBytes / std::max(seconds - profile_.exchange_seconds, 0.1 * seconds);
      set("exchange_seconds", "256 bytes from each rank to the next of its node");
      set("intra_node_bandwidth", "8 MiB from each rank of a node to the next, all at once");
    }
    if (far_ >= 0) {
      const double seconds = seconds_of(far_);
      profile_.network_bandwidth =
          kExchangeBytes / std::max(seconds - profile_.exchange_seconds, 0.1 * seconds);
      set("network_bandwidth", "8 MiB from each rank to one of the next node, all at once");
    }
  }

  // AdamW of the host's threads on memory of its own.
  void measure_update() {
    constexpr int64_t kCount = 2 * kMiB;
    const OpSpec spec = adamw_spec(kCount);
    std::vector<float> data(4 * kCount, 0.125f);
    StepScalars scalars;
    scalars.lr = 1e-6f;
    KernelArgs args;
    args.attrs = &spec.attrs;
    const auto vector = [&](int64_t i) {
      return TensorArg{data.data() + i * kCount, Dtype::f32, Dims(kCount)};
    };
    args.in[0] = vector(0);
    args.in[1] = {&scalars, Dtype::u8, Dims(sizeof scalars)};
    for (int i = 0; i < 3; ++i) args.in[2 + i] = args.out[i] = vector(1 + i);
    args.in_count = 5;
    args.out_count = 3;
    cpu::set_threads(threads_);
    const Kernel adamw = cpu::kernel(OpKind::adamw);
    adamw(args);
    const double seconds = longest(sampled([&] {
      const auto begin = std::chrono::steady_clock::now();
      adamw(args);
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }));
    profile_.cpu_update_bandwidth = op_def(OpKind::adamw).cost(spec.attrs, spec.in_types()).bytes /
                                    seconds * communicator_.ranks_on_node();
    set("cpu_update_bandwidth",
        "AdamW of 2,097,152 parameters on the threads of every rank at once");
  }

  // Last: a process has one device at a time.
  void measure_steps() {
    machine_ = machine();
    bench_.reset();
    device_.reset();
    profile_.op_rates =
        measure_op_rates(workload_.config, topology(), profile_, backend_, communicator_);
    set("op_rates", "every op within steps of small models of 2 layers, all ranks at once");
  }

  void count_node() {
    profile_.devices_per_node = communicator_.ranks_on_node();
    set("devices_per_node", "the ranks of a node");
    profile_.numa_nodes = numa_nodes();
    set("numa_nodes", "counted in /sys/devices/system/node");
  }
  static int numa_nodes() {
    int count = 0;
    while (posix_file_system().exists(fmt::format("/sys/devices/system/node/node{}", count)))
      ++count;
    return std::max(1, count);
  }

  Communicator& communicator_;
  BackendChoice backend_;
  int threads_;
  Workload workload_;
  HardwareProfile base_, profile_;
  std::string machine_;
  std::map<std::string, std::string> sources_;
  OpProgram ops_;
  int tiny_ = -1, stream_ = -1, h2d_ = -1, d2h_ = -1, small_h2d_ = -1;
  int near_ = -1, small_near_ = -1, far_ = -1;
  std::vector<int> gemms_, attentions_;  // f32, then bf16
  std::unique_ptr<Device> device_;
  std::unique_ptr<LaneBench> bench_;
};

}  // namespace

void calibrate(const Config& config, const std::string& out, Communicator& communicator) {
  FileSystem& files = posix_file_system();
  const std::string partial = out + ".partial";
  on_rank_0(communicator, [&] {
    if (!out.ends_with(".json"))
      bad_input("--out {}: hardware.profile takes a path that ends in .json; name such a file",
                out);
    files.create(partial)->close();
  });
  Calibration calibration(config, communicator);
  calibration.run();
  on_rank_0(communicator, [&] {
    const std::string text = profile_json(
        calibration.profile(), "Measured by train calibrate on " + calibration.machine() + ".",
        calibration.sources(),
        fmt::format("not measured: as the profile \"{}\" has it", calibration.base().name));
    const auto file = files.create(partial);
    file->write(text.data(), static_cast<int64_t>(text.size()));
    file->close();
    files.rename(partial, out);
    fmt::print("{}\n{}: hardware.profile takes this path\n", calibration.machine(), out);
  });
}

}  // namespace spillway
