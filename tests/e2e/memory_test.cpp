// Fits means fits, memory saved is real, and a step allocates nothing: measured on real runs.
// links: spillway_train
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "runtime/local_communicator.h"
#include "tiny_run.h"
#include "train/trainer.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SPILLWAY_OWN_MALLOC 0
#else
#define SPILLWAY_OWN_MALLOC 1
#endif

namespace {

constexpr size_t kLargeBlock = 64 << 10;
std::atomic<bool> watching{false};
std::atomic<int64_t> large_blocks{0}, all_blocks{0};

[[maybe_unused]] void note_block(size_t bytes) {
  if (!watching.load(std::memory_order_relaxed)) return;
  all_blocks.fetch_add(1, std::memory_order_relaxed);
  if (bytes > kLargeBlock) large_blocks.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

#if SPILLWAY_OWN_MALLOC
// glibc's allocator under its other names, so that every block of the process is seen.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void* malloc(size_t bytes) {
  note_block(bytes);
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  note_block(count * bytes);
  return __libc_calloc(count, bytes);
}
void* realloc(void* block, size_t bytes) {
  note_block(bytes);
  return __libc_realloc(block, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  note_block(bytes);
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  note_block(bytes);
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** block, size_t alignment, size_t bytes) {
  note_block(bytes);
  *block = __libc_memalign(alignment, bytes);
  return *block == nullptr ? ENOMEM : 0;
}
}
#endif

namespace spillway::e2e {
namespace {

constexpr int64_t kPlenty = int64_t{1} << 40;

Config small_config(int64_t layers, Precision precision, int ranks) {
  Config c;
  c.model.family = Family::llama;
  c.model.layers = layers;
  c.model.hidden = 64;
  c.model.heads = 4;
  c.model.kv_heads = 2;
  c.model.head_dim = 16;
  c.model.ffn = 96;
  c.model.context = 32;
  c.model.vocab = 120;
  c.train.micro_batch = 2;
  c.train.batch = 2 * 2 * ranks;
  c.train.steps = 10;
  c.train.precision = precision;
  c.optimizer.lr = 2e-3;
  return c;
}

using Pins = std::vector<std::pair<std::string, std::string>>;

Outcome train_steps(const Job& job, const std::string& plan_text, int steps,
                    const std::function<void(TinyRank&, int)>& look = {}) {
  Outcome outcome;
  StateCollector state;
  on_ranks(job.count(), [&](int r, Communicator& communicator) {
    SessionOptions options;
    options.plan_text = plan_text;
    TinyRank rank(*job.ranks[r], communicator, options);
    for (int step = 1; step <= steps; ++step) {
      const std::string line = bits_of(fmt::format("step {}", step), rank.step(step));
      if (r == 0) outcome.steps.push_back(line);
    }
    if (look) look(rank, r);
    state.add(rank, r);
    communicator.barrier();
  });
  outcome.state = state.hashes();
  return outcome;
}

std::string resident_plan(const Job& job) { return job.plan_text({}, {0}); }

std::string pinned_plan(const Config& config, int ranks, const Pins& pins) {
  Config c = config;
  c.place = pins;
  const Job job(c, ranks);
  return job.plan_text(placement_of_pins(job.front().input), {1});
}

const Pins kAllOnHost = {{"parameters", "host"}, {"moments", "host"},   {"gradients", "host"},
                         {"resid", "host"},      {"attn_norm", "host"}, {"qkv", "host"},
                         {"attn_out", "host"},   {"ffn_resid", "host"}, {"ffn_norm", "host"},
                         {"ffn_up", "host"},     {"ffn_act", "host"}};

// ---- budgets ----------------------------------------------------------------------------------

TEST(Fits, TheVerdictOfThePlanIsThatOfTheRun) {
  for (const int ranks : {1, 2}) {
    Job job(small_config(6, Precision::bf16, ranks), ranks);
    const PlanReport unlimited = make_plan(job.front().input);
    ASSERT_TRUE(unlimited.fits);
    const int64_t minimum = unlimited.device_minimum_bytes;
    ASSERT_GT(minimum, 0);
    ASSERT_LT(minimum, unlimited.all_resident_device_bytes);
    int trained = 0, refused = 0;
    std::vector<int64_t> distances = {1,     255,   256,    1000,   4096,
                                      10000, 50000, 100000, 200000, 400000};
    if (ranks == 2) distances = {1, 4096};
    for (const int64_t distance : distances) {
      for (const int64_t budget : {minimum - distance, minimum + distance - 1}) {
        job.set_budgets({budget, kPlenty});
        const bool fits = make_plan(job.front().input).fits;
        EXPECT_EQ(fits, budget >= minimum) << budget << " of " << minimum;
        bool ran = false;
        try {
          train_steps(job, "", 1, [&](TinyRank& rank, int) {
            EXPECT_LE(rank.session().report().plan.layout.tier_bytes[0], budget);
          });
          ran = true;
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), ExitCode::does_not_fit) << e.what();
        }
        EXPECT_EQ(ran, fits) << budget << " of " << minimum << ", " << ranks << " ranks";
        ++(ran ? trained : refused);
      }
    }
    EXPECT_EQ(trained, static_cast<int>(distances.size()));
    EXPECT_EQ(refused, static_cast<int>(distances.size()));
  }
}

// Offset of the highest byte of the device arena that two steps wrote, by what `canary` lost.
int64_t topmost_written(const Job& job, const std::string& plan_text, uint8_t canary,
                        int64_t* tail_begin, int64_t* peak) {
  int64_t top = -1;
  on_ranks(job.count(), [&](int r, Communicator& communicator) {
    SessionOptions options;
    options.plan_text = plan_text;
    char* arena = nullptr;
    int64_t bytes = 0;
    const auto fill = [&](Session& s) {
      const Plan& plan = s.report().plan;
      bytes = plan.layout.tier_bytes[0];
      int64_t last = 0;
      for (size_t b = 0; b < plan.lowered.set.buffers.size(); ++b) {
        const Buffer& buffer = plan.lowered.set.buffers[b];
        if (buffer.tier != Tier::device) continue;
        const int64_t begin = plan.layout.offset[b];
        arena = static_cast<char*>(s.executor().address(static_cast<BufferId>(b))) - begin;
        const int64_t end = begin + buffer.versions * plan.layout.version_stride[b];
        if (end == bytes)
          last = std::max(last, begin + (buffer.versions - 1) * plan.layout.version_stride[b]);
      }
      std::memset(arena, canary, static_cast<size_t>(bytes));
      if (r == 0) *tail_begin = last, *peak = plan.device.peak;
    };
    TinyRank rank(*job.ranks[r], communicator, options, fill);
    for (int step = 1; step <= 2; ++step) rank.step(step);
    if (r == 0)
      for (top = bytes - 1; top >= 0 && static_cast<uint8_t>(arena[top]) == canary;) --top;
    communicator.barrier();
  });
  return top;
}

TEST(Fits, TheReportedPeakIsTheMeasuredOne) {
  for (const int ranks : {1, 2}) {
    const Config config = small_config(6, ranks == 1 ? Precision::f32 : Precision::bf16, ranks);
    Job job(config, ranks);
    std::vector<std::string> plans = {resident_plan(job), pinned_plan(config, ranks, kAllOnHost),
                                      pinned_plan(config, ranks, {{"ffn_act", "recompute"}})};
    Job tight(config, ranks);
    tight.set_budgets({make_plan(job.front().input).device_minimum_bytes, kPlenty});
    const PlanReport least = make_plan(tight.front().input);
    ASSERT_TRUE(least.fits);
    plans.push_back(placement_to_json(least.plan, job.front().subject));
    for (size_t p = 0; p < plans.size(); ++p) {
      int64_t tail = 0, peak = 0, top = -1;
      // What is written may look like one canary, but not like both.
      for (const uint8_t canary : {0xA5, 0x3C})
        top = std::max(top, topmost_written(job, plans[p], canary, &tail, &peak));
      fmt::print("{} rank(s), plan {}: peak {}, written up to {}\n", ranks, p, peak, top + 1);
      EXPECT_LE(top + 1, peak);
      EXPECT_GE(top, tail) << "the topmost buffer, from " << tail << " on, was never written";
    }
  }
}

TEST(Fits, TwelveLayersInAThirdOfTheMemory) {
  Config c = small_config(12, Precision::f32, 1);
  c.train.micro_batch = 4;
  c.train.batch = 8;
  Job job(c, 1);
  const PlanReport plan = make_plan(job.front().input);
  const int64_t resident = plan.all_resident_device_bytes;
  const Outcome expected = train_steps(job, resident_plan(job), 4);
  job.set_budgets({resident * 35 / 100, kPlenty});
  int64_t used = 0;
  const Outcome outcome = train_steps(job, "", 4, [&](TinyRank& rank, int) {
    used = rank.session().report().plan.layout.tier_bytes[0];
  });
  fmt::print("{} of {} bytes ({:.1f} %), minimum {}\n", used, resident,
             100.0 * static_cast<double>(used) / static_cast<double>(resident),
             plan.device_minimum_bytes);
  EXPECT_LE(used * 100, resident * 35);
  EXPECT_EQ(outcome.difference(expected), "");
}

// ---- what each class saves ----------------------------------------------------------------------

int64_t aligned(int64_t bytes) { return round_up(bytes, 256); }

struct ClassBytes {
  int64_t device = 0;  // when resident
  int64_t ring = 0;    // on the device when streamed
};

// From shapes alone, for two slots a ring: what stands in one slot moves together, each tensor
// rounded up to 256 bytes.
std::map<std::string, ClassBytes> class_bytes(const Config& c) {
  const ModelConfig& m = c.model;
  const int64_t e = c.train.precision == Precision::bf16 ? 2 : 4;
  const int64_t rows = c.train.micro_batch * m.context, h = m.hidden, vocab = m.padded_vocab();
  const int64_t qkv = (m.heads + 2 * m.kv_heads) * m.head_dim, out = m.heads * m.head_dim;
  const int64_t stats = aligned(rows * 4), wide = aligned(rows * h * e);
  const std::map<std::string, int64_t> slot = {
      {"resid", wide},
      {"attn_norm", wide + stats},
      {"qkv", aligned(rows * qkv * e)},
      {"attn_out", aligned(rows * out * e) + aligned(rows * m.heads * 4)},
      {"ffn_resid", wide},
      {"ffn_norm", wide + stats},
      {"ffn_up", aligned(rows * 2 * m.ffn * e)},
      {"ffn_act", aligned(rows * m.ffn * e)}};
  std::map<std::string, ClassBytes> result;
  for (const auto& [name, bytes] : slot) result[name] = {m.layers * bytes, 2 * bytes};

  const std::vector<int64_t> matrices = {qkv * h, h * out, 2 * m.ffn * h, h * m.ffn};
  const auto block = [&](int64_t matrix_size, int64_t vector_size) {
    int64_t bytes = 2 * aligned(h * vector_size);
    for (const int64_t count : matrices) bytes += aligned(count * matrix_size);
    return bytes;
  };
  const auto table = [&](int64_t size) { return aligned(vocab * h * size); };
  const int64_t norm = aligned(h * 4);
  const auto all = [&](int64_t matrix_size, int64_t vector_size) {
    return m.layers * block(matrix_size, vector_size) + 2 * table(matrix_size) +
           aligned(h * vector_size);
  };
  // The table is used once, going forward; the head going forward (its norm) and going back.
  result["parameters"] = {all(e, 4), 2 * block(e, 4) + table(e) + 2 * (table(e) + norm)};
  result["moments"] = {2 * all(4, 4), 2 * 2 * block(4, 4)};
  // The gradients of the table and of the head are each in use once.
  result["gradients"] = {all(4, 4), 2 * block(4, 4) + table(4) + table(4) + norm};
  if (e == 2) result["master"] = {all(4, 0), 2 * block(4, 0)};
  return result;
}

TEST(Saved, EachClassAloneSavesWhatItsShapesSay) {
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    const Config config = small_config(6, precision, 1);
    const Job job(config, 1);
    const Plan resident = evaluate_placement(job.front().input, {}, {0});
    const Outcome expected = train_steps(job, resident_plan(job), 2);
    for (const auto& [name, bytes] : class_bytes(config)) {
      const std::string text = pinned_plan(config, 1, {{name, "host"}});
      int64_t device = 0, host = 0;
      const Outcome outcome = train_steps(job, text, 2, [&](TinyRank& rank, int) {
        device = rank.session().report().plan.layout.tier_bytes[0];
        host = rank.session().report().plan.layout.tier_bytes[1];
      });
      fmt::print("{:>10}: device -{}, host +{}\n", name, resident.device.peak - device,
                 host - resident.host.peak);
      EXPECT_EQ(resident.device.peak - device, bytes.device - bytes.ring) << name;
      EXPECT_EQ(host - resident.host.peak, bytes.device) << name;
      EXPECT_GT(resident.device.peak - device, 0) << name;
      EXPECT_EQ(outcome.difference(expected), "") << name;
    }
  }
}

// Bytes of all tensors of a class that outlive a micro-batch, in either tier, without the rings:
// those are windows on what stands in the other tier.
int64_t held_bytes(const ProgramSet& set, const std::string& place) {
  int64_t held = 0;
  for (const Buffer& b : set.buffers)
    if (b.place == place && !b.name.starts_with("ring ")) held += b.bytes * b.versions;
  return held;
}

// Per rank, with the sum over ranks after every micro-batch: moments and masters to 1/N from stage
// 1 on, gradients from stage 2, parameters in stage 3, each up to one block a tensor; layer by
// layer where the stages are mixed.
TEST(Saved, ZeroStagesShareWhatTheySay) {
  for (const int ranks : {2, 3}) {
    for (const Precision precision : {Precision::f32, Precision::bf16}) {
      Config config = small_config(6, precision, ranks);
      config.parallel.reduce_every = 1;
      std::vector<Outcome> outcomes;
      for (const int zero : {0, 1, 2, 3, kAutoZero}) {
        config.parallel.zero = zero;
        const Job job(config, ranks);
        ScheduleChoice mixed;
        for (int layer = 0; zero == kAutoZero && layer < 8; ++layer)
          mixed.zero.push_back((layer * 3 + ranks) % 4);
        for (const bool on_host : {false, true}) {
          const std::string text = zero == kAutoZero ? job.plan_text({}, mixed)
                                   : on_host ? pinned_plan(config, ranks, {{"moments", "host"}})
                                             : resident_plan(job);
          outcomes.push_back(train_steps(job, text, 3, [&](TinyRank& rank, int r) {
            const ProgramSet& set = rank.session().report().plan.lowered.set;
            const Graph& g = rank.session().train_schedule().graph;
            // Bytes that are held whole, and the most that shards of the rest take.
            struct Expected {
              int64_t whole = 0, shards = 0;
              void add(bool sharded, int64_t bytes, int64_t block_bytes, int ranks) {
                (sharded ? shards : whole) += sharded ? bytes / ranks + block_bytes : bytes;
              }
            } state, gradients, parameters;
            for (const Param& p : g.params) {
              const Tensor& t = g.tensors[p.param];
              const int64_t count = t.dims.count(), block = block_elements(count);
              const int stage = zero == kAutoZero ? mixed.zero[t.layer] : zero;
              const int64_t tensors = p.master == kNone ? 2 : 3;
              state.add(stage >= 1, tensors * count * 4, tensors * block * 4, ranks);
              gradients.add(stage >= 2, count * 4, block * 4, ranks);
              parameters.add(stage >= 3, t.bytes(), block * size_of(t.dtype), ranks);
            }
            SCOPED_TRACE(fmt::format("ZeRO-{} at {} ranks, rank {}", zero, ranks, r));
            const auto between = [](int64_t held, const Expected& e, bool at_most) {
              EXPECT_GE(held, e.whole);
              EXPECT_TRUE(!at_most || held <= e.whole + e.shards) << held;
            };
            between(held_bytes(set, "moments") + held_bytes(set, "master"), state, true);
            // In stages 0 and 1 sums over ranks may stand beside the accumulators.
            between(held_bytes(set, "gradients"), gradients, zero >= 2);
            between(held_bytes(set, "parameters"), parameters, true);
          }));
        }
      }
      for (size_t i = 1; i < outcomes.size(); ++i)
        EXPECT_EQ(outcomes[i].difference(outcomes[0]), "") << ranks << " ranks, run " << i;
    }
  }
}

// ---- what a process holds -----------------------------------------------------------------------

// The communicator of one rank that sees the steps of `train` go by: each gathers its hashes once.
class StepWatcher : public LocalCommunicator {
 public:
  StepWatcher(int64_t hash_bytes, std::function<void(int)> in_step)
      : hash_bytes_(hash_bytes), in_step_(std::move(in_step)) {}
  void gather(const void* data, int64_t bytes, void* out) override {
    LocalCommunicator::gather(data, bytes, out);
    if (bytes == hash_bytes_) in_step_(++steps_);
  }

 private:
  const int64_t hash_bytes_;
  const std::function<void(int)> in_step_;
  int steps_ = 0;
};

std::string fresh_folder(const std::string& name) {
  const std::string folder =
      std::filesystem::temp_directory_path() / fmt::format("spillway_{}_{}", name, getpid());
  std::filesystem::remove_all(folder);
  return folder;
}

TEST(Holds, AStepAllocatesNothingLarge) {
  if (!SPILLWAY_OWN_MALLOC) GTEST_SKIP() << "sanitizers have an allocator of their own";
  for (const bool streamed : {false, true}) {
    Config c = small_config(6, Precision::f32, 1);
    c.model.context = 128;
    c.model.vocab = 257;
    c.data.train = {std::string(SPILLWAY_SOURCE_DIR) + "/data/austen.txt"};
    c.train.micro_batch = 4;
    c.train.batch = 12;  // whose hashes are of a size that nothing else gathers
    c.train.steps = 10;
    c.train.threads = 1;
    c.output = fresh_folder("allocations");
    if (streamed) c.place = kAllOnHost;
    large_blocks = all_blocks = 0;
    StepWatcher communicator(c.train.batch * 8, [&](int step) {
      if (step == 3) watching = true;
      if (step == 10) watching = false;
    });
    testing::internal::CaptureStdout();
    const ExitCode code = train(c, {}, communicator);
    testing::internal::GetCapturedStdout();
    watching = false;
    std::filesystem::remove_all(c.output);
    EXPECT_EQ(code, ExitCode::done);
    fmt::print("steps 3 to 10: {} blocks, {} above 64 KiB\n", all_blocks.load(),
               large_blocks.load());
    EXPECT_EQ(large_blocks, 0);
  }
  // The count can count.
  watching = true;
  large_blocks = 0;
  std::vector<char> block(kLargeBlock + 1);
  watching = false;
  EXPECT_GE(block.size(), 1u);
  EXPECT_EQ(large_blocks, 1);
}

int64_t resident_bytes() {
  std::ifstream status("/proc/self/statm");
  int64_t size = 0, resident = 0;
  status >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(Holds, NoMoreThanItsArenasAndAConstantReserve) {
  if (!SPILLWAY_OWN_MALLOC) GTEST_SKIP() << "sanitizers hold memory of their own";
  std::vector<int64_t> besides;
  for (const int64_t hidden : {64, 512}) {
    Config c = small_config(6, Precision::f32, 1);
    c.model.hidden = hidden;
    c.model.head_dim = hidden / 4;
    c.model.ffn = 3 * hidden;
    const Job job(c, 1);
    train_steps(job, pinned_plan(c, 1, {{"moments", "host"}}), 3, [&](TinyRank& rank, int) {
      const Plan& plan = rank.session().report().plan;
      const int64_t arenas = plan.device.peak + plan.host.peak;
      besides.push_back(resident_bytes() - arenas);
      fmt::print("hidden {}: arenas {}, besides {} of a reserve of {}\n", hidden, arenas,
                 besides.back(), kProcessReserveBytes);
    });
    EXPECT_LE(besides.back(), kProcessReserveBytes);
  }
  // The second model is some forty times the first: nothing of its size stands beside the arenas.
  EXPECT_LE(besides[1] - besides[0], int64_t{64} << 20);
}

// ---- clipping and skipped updates ---------------------------------------------------------------

TEST(Update, ClipsByTheGlobalNormWhereverThingsStand) {
  Config c = small_config(6, Precision::f32, 1);
  c.optimizer.clip = 1e-3;
  const Job job(c, 1);
  const std::string resident = resident_plan(job);
  double norm = 0;
  on_ranks(1, [&](int, Communicator& communicator) {
    SessionOptions options;
    options.plan_text = resident;
    TinyRank rank(job.front(), communicator, options);
    const StepScalars s = rank.step(1);
    norm = s.norm;
    EXPECT_NEAR(s.clip_scale, 1e-3 / (s.norm + 1e-6), 1e-6 * s.clip_scale);
    EXPECT_LT(s.clip_scale, 0.1);
    // Gradients that stay on the device stand there after the step.
    Session& session = rank.session();
    const Graph& g = session.train_schedule().graph;
    const auto values = [&](TensorId id) {
      const auto& buffers = session.report().plan.lowered.set.buffers;
      std::vector<float> v(static_cast<size_t>(g.tensors[id].dims.count()));
      for (size_t b = 0; b < buffers.size(); ++b)
        if (buffers[b].tensor == id && buffers[b].tier == Tier::device)
          session.device().download(v.data(), session.executor().address(static_cast<BufferId>(b)),
                                    static_cast<int64_t>(v.size()) * 4);
      return v;
    };
    double squares = 0;
    for (const Param& p : g.params) {
      const std::vector<float> grad = values(p.grads[0]), m = values(p.moment1);
      for (size_t i = 0; i < grad.size(); ++i) {
        squares += static_cast<double>(grad[i]) * grad[i];
        ASSERT_NEAR(m[i], 0.1 * grad[i] * s.clip_scale, 1e-5 * std::abs(m[i]) + 1e-30);
      }
    }
    EXPECT_NEAR(std::sqrt(squares), s.norm, 1e-9 * s.norm);
  });
  EXPECT_GT(norm, 0);
  const Outcome expected = train_steps(job, resident, 3);
  EXPECT_EQ(train_steps(job, pinned_plan(c, 1, kAllOnHost), 3).difference(expected), "");
}

TEST(Update, IsSkippedBitwiseWhereTheLossIsNotFinite) {
  for (const int ranks : {1, 2}) {
    for (const Precision precision : {Precision::f32, Precision::bf16}) {
      for (const bool streamed : {false, true}) {
        const Config c = small_config(6, precision, ranks);
        const Job job(c, ranks);
        SessionOptions options;
        options.plan_text = streamed ? pinned_plan(c, ranks, kAllOnHost) : resident_plan(job);
        options.poison = true;
        StateCollector before, after, healed;
        SCOPED_TRACE(fmt::format("{} rank(s), bf16 {}, streamed {}", ranks,
                                 precision == Precision::bf16, streamed));
        on_ranks(ranks, [&](int r, Communicator& communicator) {
          TinyRank rank(*job.ranks[r], communicator, options);
          EXPECT_EQ(rank.step(1).skip_update, 0u);
          // One infinity in a weight.
          Session& session = rank.session();
          const Graph& g = session.train_schedule().graph;
          const Home* weight = nullptr;
          for (const Home& home : session.homes())
            if (g.tensors[home.tensor].name == "blk.3.attn_norm.weight") weight = &home;
          ASSERT_NE(weight, nullptr);
          void* at = session.executor().address(weight->buffer, 0, weight->offset);
          float good = 0;
          const float bad = INFINITY;
          session.device().download(&good, at, 4);
          session.device().upload(at, &bad, 4);
          before.add(rank, r);
          communicator.barrier();
          for (int step = 2; step <= 3; ++step) {
            const StepScalars s = rank.step(step);
            EXPECT_EQ(s.skip_update, 1u);
            EXPECT_FALSE(std::isfinite(s.loss) && std::isfinite(s.norm));
          }
          after.add(rank, r);
          session.device().upload(at, &good, 4);
          communicator.barrier();
          EXPECT_EQ(rank.step(4).skip_update, 0u);
          healed.add(rank, r);
          communicator.barrier();
        });
        const Outcome kept{{}, before.hashes()};
        EXPECT_EQ(kept.difference({{}, after.hashes()}), "");
        EXPECT_NE(kept.difference({{}, healed.hashes()}), "");
      }
    }
  }
}

}  // namespace
}  // namespace spillway::e2e
