// Programs of real models, lowered under random placements, pass the verifier on every rank and
// between ranks; mutations of them get the oracle's verdict.
// links: spillway_verify spillway_program spillway_model
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>

#include "model/model.h"
#include "oracle.h"
#include "parallel/build.h"
#include "program/stages.h"
#include "verify/verify.h"

namespace spillway {
namespace {

enum class Saves { none, in_place, copied };

struct Shape {
  int layers = 3, ranks = 1, tree = 1, micro_batches = 1, zero = 0;
  int64_t hidden = 32;
  Family family = Family::llama;
  Precision precision = Precision::f32;
  int32_t reduce_delay = 1, gather_ahead = 1, group = 1;
  Saves saves = Saves::none;
  std::vector<int32_t> stages;  // by layer; empty: `zero` everywhere
};

struct Built {
  ProgramSet set;
  ArenaLayout layout;
};

Config config_of(const Shape& s) {
  Config c;
  c.model.family = s.family;
  c.model.layers = s.layers;
  c.model.hidden = s.hidden;
  c.model.heads = 4;
  c.model.kv_heads = s.family == Family::gpt2 ? 4 : 2;
  c.model.ffn = s.hidden * 3 / 2;
  c.model.context = 8;
  c.model.head_dim = s.hidden / 4;
  c.model.vocab = 100;
  c.model.tied_head = true;
  c.train.batch = 2 * s.micro_batches * s.ranks;
  c.train.micro_batch = 2;
  c.train.precision = s.precision;
  c.parallel.zero = s.zero;
  c.parallel.tree = s.tree;
  return c;
}

// The same placement on every rank, as a function of `seed`.
Built build(const Shape& s, int rank, uint64_t seed) {
  const Config c = config_of(s);
  const ParallelSpec spec = parallel_spec(c, rank, s.ranks, s.ranks);
  const GraphShape shape{2, c.model.context, s.micro_batches, c.train.batch * c.model.context};
  const Graph forward = build_model(c.model, c.train.precision, 8, shape, GraphMode::train);
  const ScheduleChoice choice = {.reduce_delay = s.reduce_delay,
                                 .gather_ahead = s.gather_ahead,
                                 .group = s.group,
                                 .zero = s.stages};
  const Schedule train = build_train_schedule(forward, c.optimizer, spec, choice);
  const Schedule evaluate = build_forward_schedule("evaluate", forward, spec, choice);
  std::mt19937_64 random(seed);
  Placement placement;
  for (const PlaceUnit& unit : place_units(train)) {
    placement.where[unit.key] = static_cast<Where>(random() % (unit.recomputable ? 3 : 2));
    placement.slots[unit.key.first] = 1 + random() % 3;
  }
  Lowered lowered = lower({&train, &evaluate}, placement, {.threads = 2}, 4096);
  // Whatever the copies are thought to take, and however small they are cut.
  if (random() % 2)
    order_copies(lowered.set, 64 << random() % 12,
                 [&](const Program&, const Instr&) { return static_cast<double>(random() % 100); });
  if (s.saves != Saves::none) add_save_program(lowered, train, s.saves == Saves::copied);
  Built b{std::move(lowered.set), {}};
  b.layout = pack(b.set);
  synchronise(b.set, b.layout);
  return b;
}

std::string text_of(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& f : findings) text += describe(f) + "\n";
  return text;
}

Shape random_shape(std::mt19937_64& random) {
  Shape s;
  s.layers = 2 + random() % 3;
  s.ranks = 1 + random() % 4;
  if (random() % 4 == 0) s.ranks = 6;
  s.tree = 1 + random() % 3;
  s.micro_batches = 1 + random() % 7;
  s.zero = random() % 4;
  if (random() % 2)
    for (int layer = 0; layer < s.layers + 2; ++layer)
      s.stages.push_back(static_cast<int32_t>(random() % 4));
  s.family = random() % 3 ? Family::llama : Family::gpt2;
  s.precision = random() % 2 ? Precision::bf16 : Precision::f32;
  s.reduce_delay = random() % 2;
  s.gather_ahead = random() % 2;
  s.saves = static_cast<Saves>(random() % 3);
  // Ranks are summed once a step.
  do s.group = 1 + random() % s.micro_batches;
  while (s.micro_batches % s.group != 0);
  return s;
}

TEST(VerifyLowered, RandomPlacementsAreClean) {
  const uint64_t seed = std::random_device{}();
  fmt::print("seed {}\n", seed);
  std::mt19937_64 random(seed);
  for (int trial = 0; trial < 60; ++trial) {
    const Shape s = random_shape(random);
    const uint64_t placement = random();
    std::vector<Built> built;
    for (int r = 0; r < s.ranks; ++r) built.push_back(build(s, r, placement));
    for (const Built& b : built)
      ASSERT_EQ(text_of(verify(b.set, b.layout, {})), "") << "seed " << seed << " trial " << trial;
    for (size_t p = 0; p < built[0].set.programs.size(); ++p) {
      std::vector<RankProgram> ranks;
      for (int r = 0; r < s.ranks; ++r) ranks.push_back({r, &built[r].set.programs[p]});
      ASSERT_EQ(text_of(verify_ranks(ranks)), "") << "seed " << seed << " trial " << trial;
    }
  }
}

// Mutates one thing of one instruction or buffer; says what.
std::string mutate(Built& b, std::mt19937_64& random) {
  Program& program = b.set.programs[random() % b.set.programs.size()];
  for (;;) {
    Instr& i = program.instrs[random() % program.instrs.size()];
    const size_t buffer = random() % b.set.buffers.size();
    switch (random() % 6) {
      case 0:
      case 1:
        if (i.waits.empty()) break;
        i.waits.erase(i.waits.begin() + random() % i.waits.size());
        return "wait removed from " + i.name;
      case 2: {
        const uint8_t bit = 1u << random() % kLaneCount;
        if (!(i.entry_waits & bit)) break;
        i.entry_waits ^= bit;
        return fmt::format("entry wait {} removed from {}", bit, i.name);
      }
      case 3:
        if (i.access.empty()) break;
        i.access.erase(i.access.begin() + random() % i.access.size());
        return "access dropped from " + i.name;
      case 4:
        b.layout.offset[buffer] += random() % 2 ? 256 : -256;
        return "buffer shifted: " + b.set.buffers[buffer].name;
      case 5:
        if (b.set.buffers[buffer].versions == 1) break;
        --b.set.buffers[buffer].versions;
        return "version taken from " + b.set.buffers[buffer].name;
    }
  }
}

TEST(VerifyLowered, MutationsAreJudgedLikeTheOracle) {
  const uint64_t seed = std::random_device{}();
  fmt::print("seed {}\n", seed);
  std::mt19937_64 random(seed);
  int harmful = 0, harmless = 0;
  for (int trial = 0; trial < 20; ++trial) {
    Shape s = random_shape(random);
    s.layers = 2;
    s.stages.resize(s.stages.empty() ? 0 : 4);
    s.hidden = 16;
    s.micro_batches = 1 + random() % 3;
    s.group = random() % 2 ? s.micro_batches : 1;
    const Built base = build(s, random() % s.ranks, random());
    ASSERT_EQ(oracle::Judge(base.set, base.layout, {}).verdict(), "") << "seed " << seed;
    for (int k = 0; k < 15; ++k) {
      Built mutant = base;
      const std::string what = mutate(mutant, random);
      const std::string bad = oracle::Judge(mutant.set, mutant.layout, {}).verdict();
      const std::string found = text_of(verify(mutant.set, mutant.layout, {}));
      ASSERT_EQ(bad.empty(), found.empty())
          << "seed " << seed << ": " << what << "\noracle: " << bad << "\nverifier: " << found;
      ++(bad.empty() ? harmless : harmful);
    }
  }
  fmt::print("{} harmful, {} harmless\n", harmful, harmless);
  EXPECT_GE(harmful, 150);
}

// A 175B model on 512 nodes of 8: exchanges are runs of peers, whatever the number of ranks, and
// agree between ranks of one node, of one place in their nodes, and of neither. Prints the time.
TEST(VerifyLowered, ThousandsOfRanks) {
  constexpr int kRanks = 4096, kLayers = 96;
  Config c;
  c.model = {.family = Family::gpt2,
             .layers = kLayers,
             .hidden = 12288,
             .heads = 96,
             .kv_heads = 96,
             .ffn = 4 * 12288,
             .context = 2048};
  c.model.head_dim = 128;
  c.model.vocab = 50257;
  c.model.tied_head = true;
  c.train.batch = kRanks;
  c.train.micro_batch = 1;
  c.train.precision = Precision::bf16;
  c.parallel.tree = 8;
  const GraphShape shape{1, c.model.context, 1, c.train.batch * c.model.context};
  const Graph forward = build_model(c.model, c.train.precision, 2048, shape, GraphMode::train);
  for (const int zero : {0, 1, 2, 3}) {
    c.parallel.zero = zero;
    std::vector<Lowered> lowered;
    const std::vector<int> given = {0, 7, 9, 2049, 4095};
    for (const int rank : given) {
      const auto begin = std::chrono::steady_clock::now();
      const Schedule train =
          build_train_schedule(forward, c.optimizer, parallel_spec(c, rank, kRanks, 8), {1, 1});
      const auto built = std::chrono::steady_clock::now();
      lowered.push_back(lower({&train}, {}, {.threads = 2}, 0));
      const auto end = std::chrono::steady_clock::now();
      const std::chrono::duration<double> building = built - begin, lowering = end - built;
      size_t transfers = 0, exchanges = 0;
      int64_t across = 0;
      for (const Instr& i : lowered.back().set.programs[0].instrs) {
        if (i.kind != InstrKind::exchange) continue;
        ++exchanges;
        transfers += i.transfers.size();
        for (const ProgramTransfer& t : i.transfers)
          if (t.send && t.stride == 8) across += t.count * t.bytes(i.in[t.operand]);
        // By parameter: sends and receives, before and after this rank, whole and short parts.
        EXPECT_TRUE(i.transfers.size() <= 16 * 8 || i.name.starts_with("scalars")) << i.name;
      }
      if (rank == 0)
        fmt::print("ZeRO-{}: schedule {:.3f} s, lowering {:.3f} s, {} exchanges of {} transfers\n",
                   zero, building.count(), lowering.count(), exchanges, transfers);
      // What leaves the node is about an eighth of the gradients and of the parameters, not all of
      // them; the shards of the last place in each node are empty.
      constexpr int64_t kParameters = 175'000'000'000;
      const int64_t gathered = zero == 0 ? 4 : zero == 3 ? 2 * 2 : 2;
      EXPECT_LT(across, kParameters * (4 + gathered) / 8 * 3 / 2);
      EXPECT_TRUE(rank % 8 == 7 || across > kParameters * (4 + gathered) / 8) << across;
    }
    std::vector<RankProgram> ranks;
    for (size_t r = 0; r < given.size(); ++r)
      ranks.push_back({given[r], &lowered[r].set.programs[0]});
    EXPECT_EQ(text_of(verify_ranks(ranks)), "");
  }
}

// Prints the time; nothing is decided by it.
TEST(VerifyLowered, TwentyFourLayers) {
  Shape s;
  s.layers = 24;
  s.ranks = 2;
  s.zero = 1;
  s.micro_batches = 32;
  s.precision = Precision::bf16;
  const Built b = build(s, 1, 1);
  const auto begin = std::chrono::steady_clock::now();
  const auto findings = verify(b.set, b.layout, {});
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_EQ(text_of(findings), "");
  size_t instrs = 0, accesses = 0;
  for (const Program& p : b.set.programs) {
    instrs += p.instrs.size();
    for (const Instr& i : p.instrs) accesses += i.access.size();
  }
  fmt::print("{} instructions, {} accesses verified in {:.3f} s\n", instrs, accesses, seconds);
}

}  // namespace
}  // namespace spillway
