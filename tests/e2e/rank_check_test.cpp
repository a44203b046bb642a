// Ranks that diverge and processors that compute wrongly are found and named; ranks that agree are
// left alone, and a check changes nothing.
// links: spillway_train
#include "train/rank_check.h"

#include <gtest/gtest.h>

#include <atomic>

#include "kernels/cpu/table.h"
#include "tiny_run.h"
#include "train/together.h"

namespace spillway::e2e {
namespace {

// A processor that flips a bit of the results of one kind of kernel, on one rank. That is whoever
// computes in that rank's arena.
struct Fault {
  std::atomic<const char*> begin{nullptr}, end{nullptr};  // the arena
  std::atomic<int> skip{0};   // results that stay right before the first flip
  std::atomic<int> flips{0};  // flips to come; negative: without end
  int64_t element = 0;
  uint32_t mask = 1;
};
Fault fault;

void faulty_dweight(const KernelArgs& args) {
  cpu::kernel(OpKind::matmul_dweight)(args);
  const char* out = static_cast<const char*>(args.out[0].data);
  if (out < fault.begin.load() || out >= fault.end.load() || fault.flips.load() == 0) return;
  if (fault.skip.fetch_sub(1) > 0) return;
  if (fault.flips.load() > 0) fault.flips.fetch_sub(1);
  args.out[0].as<uint32_t>()[fault.element % args.out[0].dims.count()] ^= fault.mask;
}

Kernel faulty(OpKind kind) {
  return kind == OpKind::matmul_dweight ? faulty_dweight : cpu::kernel(kind);
}

void strike(TinyRank& rank, int flips, std::mt19937_64& random) {
  Session& s = rank.session();
  const ArenaLayout& layout = s.report().plan.layout;
  const char* base = static_cast<const char*>(s.executor().address(0)) - layout.offset[0];
  fault.begin = base;
  fault.end = base + layout.tier_bytes[static_cast<int>(Tier::device)];
  fault.skip = static_cast<int>(random() % 8);  // of the three layers' products, 5 each
  fault.element = static_cast<int64_t>(random() % 4096);
  fault.mask = 1u << random() % 32;
  fault.flips = flips;
}

Config tiny(int ranks, int zero) {
  Config c;
  c.model.family = Family::llama;
  c.model.layers = 3;
  c.model.hidden = 32;
  c.model.heads = c.model.kv_heads = 4;
  c.model.head_dim = 8;
  c.model.ffn = 48;
  c.model.context = 16;
  c.model.vocab = 100;
  c.train.batch = 4 * ranks;
  c.train.micro_batch = 1;
  c.train.steps = 100000;
  c.train.check_every = 1;
  c.optimizer.lr = 1e-3;
  c.parallel.zero = zero;
  c.parallel.reduce_every = zero == 2 ? 1 : 0;
  c.parallel.tree = 1;
  return c;
}

using At = std::function<void(TinyRank&, int rank, int64_t step)>;

// Trains and checks after every step. Returns the message of the check that found something, or "".
std::string train_and_check(const Config& config, int ranks, int64_t steps, const At& before_check,
                            std::map<std::string, uint64_t>* state = nullptr, bool check = true) {
  Job job(config, ranks);
  StateCollector collector;
  fault.flips = 0;
  try {
    on_ranks(ranks, [&](int r, Communicator& communicator) {
      SessionOptions options;
      options.kernels = faulty;
      TinyRank rank(*job.ranks[r], communicator, options);
      RankCheck checks(rank.session(), communicator);
      for (int64_t step = 1; step <= steps; ++step) {
        rank.step(step);
        communicator.barrier();
        if (before_check) before_check(rank, r, step);
        communicator.barrier();
        if (check)
          checks.run(step, [&](int of, int64_t micro, const MicroBatch& out) {
            rank.fill(step, of, micro, out);
          });
      }
      EXPECT_EQ(checks.runs(), check ? steps : 0);
      collector.add(rank, r);
    });
  } catch (const SharedError& e) {
    EXPECT_EQ(e.code(), ExitCode::no_progress);
    return e.what();
  }
  if (state) *state = collector.hashes();
  return "";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Seed {
  uint64_t value = std::random_device()();
  std::mt19937_64 random{value};
  Seed() { std::printf("seed %llu\n", static_cast<unsigned long long>(value)); }
};

TEST(RankCheck, RanksThatAgreeAreLeftAloneAndUnchanged) {
  const int64_t steps = times(1) > 1 ? 1000 : 20;
  for (const int ranks : {1, 3}) {
    for (const int zero : {0, 1, 2, 3}) {
      std::map<std::string, uint64_t> with, without;
      EXPECT_EQ(train_and_check(tiny(ranks, zero), ranks, steps, {}, &with), "");
      EXPECT_EQ(train_and_check(tiny(ranks, zero), ranks, steps, {}, &without, false), "");
      EXPECT_EQ(with, without) << ranks << " ranks, zero " << zero;
    }
  }
}

TEST(RankCheck, AFlipInARerunGradientNamesTensorAndPair) {
  Seed seed;
  for (int trial = 0; trial < times(4); ++trial) {
    const int ranks = 2 + trial % 3, zero = trial % 4;
    const int bad = static_cast<int>(seed.random() % ranks);
    const std::string told =
        train_and_check(tiny(ranks, zero), ranks, 4, [&](TinyRank& rank, int r, int64_t step) {
          if (r == bad && step == 3) strike(rank, 1, seed.random);
        });
    // The rank computes its own micro-batch, or the one of the rank before it.
    const int before = (bad + ranks - 1) % ranks, after = (bad + 1) % ranks;
    EXPECT_TRUE(has(told, "step 3: silent corruption: ")) << told;
    EXPECT_TRUE(has(told, fmt::format("rank {} (host", bad))) << told;
    EXPECT_TRUE(has(told, fmt::format("rank {} (host", before)) ||
                has(told, fmt::format("rank {} (host", after)))
        << told;
    EXPECT_TRUE(has(told, ".grad")) << told;
  }
}

TEST(RankCheck, AProcessorThatIsAlwaysWrongIsInBothPairs) {
  Seed seed;
  for (int trial = 0; trial < times(3); ++trial) {
    const int ranks = 3, bad = trial % ranks;
    const std::string told =
        train_and_check(tiny(ranks, trial % 4), ranks, 4, [&](TinyRank& rank, int r, int64_t step) {
          if (r == bad && step == 2) {
            strike(rank, -1, seed.random);
            fault.skip = 0;
          }
        });
    EXPECT_TRUE(has(told, fmt::format("rank {} (host", bad))) << told;
    EXPECT_TRUE(has(told, "is in two of these pairs")) << told;
    const size_t at = told.find("is in two of these pairs");
    EXPECT_NE(told.rfind(fmt::format("; rank {} (host", bad), at), std::string::npos) << told;
  }
}

TEST(RankCheck, ATransientFlipOnOneRankAloneIsSeen) {
  Seed seed;
  const std::string told =
      train_and_check(tiny(1, 0), 1, 3, [&](TinyRank& rank, int, int64_t step) {
        if (step == 2) strike(rank, 1, seed.random);
      });
  EXPECT_TRUE(has(told, "step 2: silent corruption: ")) << told;
  EXPECT_TRUE(has(told, "computed it twice")) << told;
}

TEST(RankCheck, AFlipInAReplicatedWeightNamesTensorAndCulprit) {
  Seed seed;
  for (int trial = 0; trial < times(4); ++trial) {
    const int ranks = 2 + trial % 3, zero = trial % 3;
    const int bad = static_cast<int>(seed.random() % ranks);
    std::string tensor;
    const std::string told =
        train_and_check(tiny(ranks, zero), ranks, 4, [&](TinyRank& rank, int r, int64_t step) {
          if (r != bad || step != 2) return;
          Session& s = rank.session();
          const Graph& g = s.train_schedule().graph;
          const Param& p = g.params[seed.random() % g.params.size()];
          tensor = g.tensors[p.param].name;
          for (const Home& home : s.homes())
            if (home.tensor == p.param) {
              const int64_t at = static_cast<int64_t>(seed.random() % home.count) * 4;
              auto* word =
                  static_cast<uint32_t*>(s.executor().address(home.buffer, 0, home.offset + at));
              *word ^= 1u << seed.random() % 32;
            }
        });
    EXPECT_TRUE(has(told, "step 2: ranks diverged: " + tensor + " ")) << told << " / " << tensor;
    EXPECT_TRUE(has(told, fmt::format("rank {} (host", bad))) << told;
    if (ranks > 2)
      EXPECT_TRUE(has(told, fmt::format("contradicts the {} other copies", ranks - 1))) << told;
    else
      EXPECT_TRUE(has(told, "no majority")) << told;
  }
}

}  // namespace
}  // namespace spillway::e2e
