// Placement never changes a bit: random placements of random tiny models against the all-resident
// plan of the same numerics.
// links: spillway_train
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "tiny_run.h"
#include "verify/verify.h"

namespace spillway::e2e {
namespace {

constexpr int kSteps = 4;
constexpr int kVariants = 48, kPlacements = 6;

struct Variant {
  Config config;
  int ranks = 1;
  std::string text;
};

Variant random_variant(std::mt19937_64& random) {
  const auto pick = [&](std::initializer_list<int64_t> choices) {
    return *(choices.begin() + static_cast<int64_t>(random() % choices.size()));
  };
  Variant v;
  Config& c = v.config;
  ModelConfig& m = c.model;
  m.family = pick({0, 1, 1, 1}) != 0 ? Family::llama : Family::gpt2;
  m.layers = pick({6, 6, 7});
  m.hidden = pick({32, 32, 48});
  m.head_dim = pick({8, 16});
  m.heads = m.hidden / m.head_dim;
  m.kv_heads = m.heads;
  m.ffn = pick({40, 64, 96});
  m.context = pick({16, 16, 32});
  m.vocab = pick({100, 128, 257});
  m.tied_head = true;
  if (m.family == Family::llama) {
    m.kv_heads = m.heads % 2 == 0 ? pick({1, 2}) * m.heads / 2 : m.heads;
    m.tied_head = pick({0, 1}) != 0;
    m.qk_norm = pick({0, 1, 1}) != 0;
    m.qkv_bias = pick({0, 0, 1}) != 0;
    m.rope.llama3_scaling = pick({0, 1}) != 0;
  }
  v.ranks = static_cast<int>(pick({1, 2, 2, 3, 4}));
  const int64_t micro_batches = pick({1, 4});
  c.train.micro_batch = pick({1, 1, 2});
  c.train.batch = c.train.micro_batch * micro_batches * v.ranks;
  c.train.steps = 10;
  c.train.precision = pick({0, 1}) != 0 ? Precision::bf16 : Precision::f32;
  c.train.seed = random() % 1000;
  c.train.eval_every = pick({0, 1});
  c.train.check_every = pick({0, 5});
  c.train.loss_chunk = pick({0, 8, 24});
  c.optimizer.lr = 3e-3;
  c.optimizer.warmup = 2;
  c.optimizer.clip = pick({0, 1}) != 0 ? 0.5 : 0.0;
  c.parallel.reduce_every = micro_batches == 4 ? pick({0, 1, 2}) : 0;
  c.parallel.tree = std::min<int64_t>(v.ranks, pick({1, 2, 2, 4}));
  v.text = fmt::format(
      "{} {} layers, hidden {}, heads {}/{}, tied {}, qk_norm {}, {}, {} ranks, {} micro-batches, "
      "reduce_every {}, tree {}, seed {}",
      m.family == Family::llama ? "llama" : "gpt2", m.layers, m.hidden, m.heads, m.kv_heads,
      m.tied_head, m.qk_norm, c.train.precision == Precision::bf16 ? "bf16" : "f32", v.ranks,
      micro_batches, c.parallel.reduce_every, c.parallel.tree, c.train.seed);
  return v;
}

struct Drawn {
  Placement placement;
  ScheduleChoice schedule;
  std::string text;
};

Drawn random_placement(const Job& job, std::mt19937_64& random) {
  Drawn d;
  d.schedule.reduce_delay = static_cast<int>(random() % 2);
  d.schedule.gather_ahead = static_cast<int>(random() % 2);
  const std::vector<int32_t> groups = group_choices(job.front().spec);
  d.schedule.group = groups[random() % groups.size()];
  // A stage for each layer, where they are free.
  if (job.front().spec.zero_is_free)
    for (int64_t layer = 0; layer < job.front().config.model.layers + 2; ++layer)
      d.schedule.zero.push_back(static_cast<int32_t>(random() % 4));
  // All updates at the end, all at another position, or each at any.
  const uint64_t positions = random() % 6;
  if (positions > 0)
    for (int64_t layer = 0; layer < job.front().config.model.layers + 2; ++layer)
      d.schedule.update.push_back(
          static_cast<UpdatePosition>(positions < 4 ? positions : random() % 4));
  const std::vector<PlaceUnit> units = place_units(job.front().train.get(d.schedule));
  std::vector<std::string> classes;
  for (const PlaceUnit& unit : units)
    if (classes.empty() || classes.back() != unit.key.first) classes.push_back(unit.key.first);
  for (const std::string& name : classes)
    d.placement.slots[name] = static_cast<int32_t>(1 + random() % 3);

  const auto choose = [&](const PlaceUnit& unit, uint64_t host_percent, uint64_t draw) {
    if (draw % 100 < host_percent) return Where::host;
    return unit.recomputable && draw / 100 % 2 == 0 ? Where::recompute : Where::device;
  };
  const uint64_t mode = random() % 100;
  std::map<std::string, uint64_t> draw_of_class;
  for (const std::string& name : classes) draw_of_class[name] = random();
  const std::string alone = classes[random() % classes.size()];
  const uint64_t percent = 20 + random() % 70;
  for (const PlaceUnit& unit : units) {
    Where where = Where::device;
    if (mode < 40) {
      where = choose(unit, percent, random());
      d.text = fmt::format("each unit for itself, {} % on the host", percent);
    } else if (mode < 60) {
      if (unit.key.first == alone) where = choose(unit, 90, draw_of_class[alone]);
      d.text = "only " + alone;
    } else if (mode < 85) {
      where = choose(unit, percent, draw_of_class[unit.key.first]);
      d.text = fmt::format("each class for itself, {} % on the host", percent);
    } else if (mode < 95) {
      where = Where::host;
      d.text = "all on the host";
    } else {
      where = unit.recomputable ? Where::recompute : Where::host;
      d.text = "all recomputed or on the host";
    }
    if (unit.state && d.schedule.updates_on_host(unit.key.second)) where = Where::host;
    d.placement.where[unit.key] = where;
  }
  return d;
}

// What one run has shown besides its outcome.
struct Facts {
  bool both_ways = false;    // beyond the batch and the scalars
  bool fewer_slots = false;  // than layers of the model, in a ring that all of them use
  bool updates_on_host = false;
  std::set<std::string> streamed;    // classes that came from the host
  std::set<std::string> recomputed;  // classes
};

std::set<std::string> streamed_classes(const ProgramSet& set) {
  std::set<std::string> result;
  for (const Instr& i : set.programs[0].instrs)
    if (i.kind == InstrKind::copy && i.lane == Lane::h2d)
      result.insert(set.buffers[i.out[0].buffer].place);
  result.erase("batch");
  result.erase("scalars");
  return result;
}

Facts facts_of(Session& session, int64_t layers) {
  Facts f;
  const Plan& plan = session.report().plan;
  f.streamed = streamed_classes(plan.lowered.set);
  f.updates_on_host = plan.schedule.updates_on_host();
  std::map<std::string, int64_t> on_host;
  for (const auto& [key, where] : plan.placement.where) {
    if (where == Where::host) ++on_host[key.first];
    if (where == Where::recompute) f.recomputed.insert(key.first);
  }
  for (const Buffer& b : plan.lowered.set.buffers)
    if (b.tier == Tier::device && b.scope == Scope::step && f.streamed.contains(b.place) &&
        on_host[b.place] >= layers && b.versions < layers)
      f.fewer_slots = true;
  return f;
}

void check_bytes(TinyRank& rank, int evaluations, Facts& facts) {
  for (const Lane lane : {Lane::h2d, Lane::d2h}) {
    int64_t planned = kSteps * rank.planned_bytes(0, lane);
    if (evaluations > 0) planned += evaluations * rank.planned_bytes(1, lane);
    if (const int flush = rank.session().flush_program(); flush >= 0)
      planned += rank.flushes() * rank.planned_bytes(flush, lane);
    const int64_t moved = rank.session().device().bytes_copied(lane);
    if (moved != planned)
      internal_error("{} bytes copied on lane {}, {} planned", moved, static_cast<int>(lane),
                     planned);
  }
  const Lowered& lowered = rank.session().report().plan.lowered;
  const auto io_bytes = [&](const std::string& name) {
    auto it = lowered.io.find(name);
    if (it == lowered.io.end()) return int64_t{0};
    const Buffer& b = lowered.set.buffers[it->second];
    return b.bytes * b.versions;
  };
  const int64_t in = io_bytes("train.tokens") + io_bytes("train.targets") +
                     io_bytes("train.token_order") + io_bytes("train.scalars");
  // The update stage and each group of micro-batches may ask for their inputs once more, never
  // more.
  facts.both_ways = rank.planned_bytes(0, Lane::h2d) > in &&
                    rank.planned_bytes(0, Lane::d2h) > io_bytes("train.scalars.out");
}

Outcome run(const Job& job, const SessionOptions& options, Facts& facts) {
  Outcome outcome;
  StateCollector state;
  std::vector<const ProgramSet*> sets(static_cast<size_t>(job.count()));
  on_ranks(job.count(), [&](int r, Communicator& communicator) {
    TinyRank rank(*job.ranks[r], communicator, options);
    Session& session = rank.session();
    const bool evaluates = job.front().input.evaluate != nullptr;
    sets[r] = &session.report().plan.lowered.set;
    communicator.barrier();
    if (r == 0) {
      for (size_t p = 0; p < sets[0]->programs.size(); ++p) {
        std::vector<RankProgram> all;
        for (int other = 0; other < job.count(); ++other)
          all.push_back({other, &sets[other]->programs[p]});
        const auto findings = verify_ranks(all);
        if (!findings.empty()) internal_error("between ranks: {}", describe(findings[0]));
      }
    }
    communicator.barrier();
    std::vector<std::string> lines;
    for (int step = 1; step <= kSteps; ++step) {
      lines.push_back(bits_of(fmt::format("step {}", step), rank.step(step)));
      if (!evaluates || step % 2 == 1) continue;
      double all[8];
      const double own = rank.evaluate(1000);
      communicator.gather(&own, sizeof own, all);
      for (int other = 0; other < job.count(); ++other)
        lines.push_back(fmt::format("evaluated after {}: {:a}", step, all[other]));
    }
    const auto findings =
        verify(session.report().plan.lowered.set, session.report().plan.layout, {});
    if (!findings.empty()) internal_error("not valid: {}", describe(findings[0]));
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    if (communicator.broadcast_text(text, 0) != text) internal_error("ranks disagree: {}", text);
    state.add(rank, r);
    Facts own = facts_of(session, job.front().config.model.layers);
    check_bytes(rank, evaluates ? kSteps / 2 : 0, own);
    if (r == 0) {
      outcome.steps = lines;
      facts = own;
    }
    communicator.barrier();
  });
  outcome.state = state.hashes();
  return outcome;
}

struct Counts {
  int runs = 0, both_ways = 0, fewer_slots = 0, minimum = 0, delayed = 0, on_host = 0;
  std::map<std::string, int> streamed, recomputed;

  void add(const Facts& f) {
    ++runs;
    both_ways += f.both_ways;
    fewer_slots += f.fewer_slots;
    on_host += f.updates_on_host;
    for (const std::string& name : f.streamed) ++streamed[name];
    for (const std::string& name : f.recomputed) ++recomputed[name];
  }
};

SessionOptions chaos(std::mt19937_64& random, Counts& counts) {
  static constexpr int kMicroseconds[] = {0, 0, 5, 30, 100};
  SessionOptions o;
  o.poison = true;
  o.chaos_seed = random();
  o.chaos_us = kMicroseconds[random() % 5];
  counts.delayed += o.chaos_us > 0;
  return o;
}

TEST(Placement, NeverChangesABit) {
  const char* given = std::getenv("SPILLWAY_SEED");
  const uint64_t seed = given != nullptr ? std::stoull(given) : std::random_device{}();
  fmt::print("seed {} (SPILLWAY_SEED repeats it)\n", seed);
  std::fflush(stdout);  // a crash must not take it along
  std::mt19937_64 random(seed);
  Counts counts;
  const int variants = times(kVariants);
  for (int n = 0; n < variants; ++n) {
    const Variant v = random_variant(random);
    std::vector<std::unique_ptr<Job>> jobs;  // by ZeRO stage, and of stages by layer
    for (int zero : {0, 1, 2, 3, kAutoZero}) {
      Config c = v.config;
      c.parallel.zero = zero;
      jobs.push_back(std::make_unique<Job>(c, v.ranks));
    }
    const auto check = [&](const Job& job, const SessionOptions& options, const Outcome& expected,
                           const std::string& what) {
      Facts facts;
      std::string difference;
      try {
        difference = run(job, options, facts).difference(expected);
      } catch (const std::exception& e) {
        difference = e.what();
      }
      counts.add(facts);
      EXPECT_EQ(difference, "") << "seed " << seed << ", variant " << n << ": " << v.text << "; "
                                << what << ", delays up to " << options.chaos_us << " us";
    };

    SessionOptions resident;
    resident.plan_text = jobs[0]->plan_text({}, {0});
    Facts unused;
    const Outcome expected = run(*jobs[0], resident, unused);
    ASSERT_FALSE(unused.both_ways);
    for (int p = 0; p < kPlacements; ++p) {
      const uint64_t zero = random() % 6 % 5;
      const Drawn drawn = random_placement(*jobs[zero], random);
      SessionOptions options = chaos(random, counts);
      options.plan_text = jobs[zero]->plan_text(drawn.placement, drawn.schedule);
      check(*jobs[zero], options, expected,
            fmt::format("ZeRO-{}, delay {}, ahead {}, groups of {}, {}",
                        fmt::join(drawn.schedule.zero.empty()
                                      ? std::vector<int32_t>{static_cast<int32_t>(zero)}
                                      : drawn.schedule.zero,
                                  ","),
                        drawn.schedule.reduce_delay, drawn.schedule.gather_ahead,
                        drawn.schedule.group, drawn.text));
      if (HasFailure()) return;
    }

    if (n % 3 == 2) continue;  // making plans takes most of the time
    Job& job = *jobs[random() % 5];
    const int64_t minimum = make_plan(job.front().input).device_minimum_bytes;
    job.set_budgets({minimum, int64_t{1} << 40});
    check(job, chaos(random, counts), expected, fmt::format("in the least memory, {}", minimum));
    ++counts.minimum;
    if (HasFailure()) return;
  }

  fmt::print(
      "{} runs: {} move bytes both ways, {} with fewer slots than layers, {} with updates on the "
      "host, {} in the least memory, {} with delayed copies\nstreamed:",
      counts.runs, counts.both_ways, counts.fewer_slots, counts.on_host, counts.minimum,
      counts.delayed);
  for (const auto& [name, count] : counts.streamed) fmt::print(" {} {}", name, count);
  fmt::print("\nrecomputed:");
  for (const auto& [name, count] : counts.recomputed) fmt::print(" {} {}", name, count);
  fmt::print("\n");
  EXPECT_GE(counts.runs, 300);
  EXPECT_GE(counts.both_ways, 250);
  EXPECT_GE(counts.fewer_slots, 150);
  EXPECT_GE(counts.minimum, 30);
  EXPECT_GE(counts.on_host, 100);
  for (const char* name : {"parameters", "master", "moments", "gradients"})
    EXPECT_GE(counts.streamed[name], 40) << name;
  for (const auto& [name, count] : counts.streamed) EXPECT_GE(count, 40) << name;
  for (const auto& [name, count] : counts.recomputed) EXPECT_GE(count, 15) << name;
}

}  // namespace
}  // namespace spillway::e2e
