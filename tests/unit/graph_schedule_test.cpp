// The train schedule over ranks, micro-batches, reduce intervals and ZeRO stages: its structure,
// and its numbers on the reference kernels with all ranks in one process.
// links: spillway_parallel spillway_model kernels_reference nlohmann_json::nlohmann_json
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "kernels/reference/table.h"
#include "parallel/units.h"
#include "tests/golden/golden.h"

namespace spillway {
namespace {

constexpr int64_t kTokens = 8;

ModelConfig tiny(Family family) {
  ModelConfig c;
  c.family = family;
  c.layers = 2;
  c.hidden = 16;
  c.heads = c.kv_heads = 2;
  c.head_dim = 8;
  c.ffn = 24;
  c.context = kTokens;
  c.vocab = 200;  // tables larger than a block, so that they are cut
  c.tied_head = family == Family::gpt2;
  return c;
}

struct Layout {
  Family family = Family::gpt2;
  int ranks = 1, micro_batches = 1, reduce_every = 1, zero = 0, delay = 0, group = 1;
  Precision precision = Precision::bf16;
  int tree = 2;
  std::vector<int32_t> stages;  // by layer, if not empty
  bool two_levels() const { return tree > 1 && tree < ranks && ranks % tree == 0; }
  std::string text() const {
    return "ranks " + std::to_string(ranks) + " micro-batches " + std::to_string(micro_batches) +
           " tree " + std::to_string(tree) + " every " + std::to_string(reduce_every) + " zero " +
           std::to_string(zero) + " delay " + std::to_string(delay) + " group " +
           std::to_string(group) + (family == Family::gpt2 ? " gpt2" : " llama");
  }
};

std::vector<Layout> layouts() {
  std::vector<Layout> result;
  for (const Family family : {Family::gpt2, Family::llama})
    for (int ranks : {1, 2, 3})
      for (int micro_batches : {1, 2, 4})
        for (int every : {1, 2, 4})
          for (int zero : {0, 1, 2, 3})
            for (int delay : {0, 1})
              for (int group : {1, 2, 4})
                if (every <= micro_batches && group <= micro_batches)
                  result.push_back({family, ranks, micro_batches, every, zero, delay, group});
  // Two levels, and a tree that does not divide the ranks.
  for (const auto& [ranks, tree] : {std::pair{4, 2}, {6, 2}, {6, 3}, {5, 2}})
    for (int zero : {0, 1, 2, 3})
      for (const auto& [every, group, delay] :
           {std::tuple{4, 1, 1}, {1, 1, 0}, {1, 2, 1}, {2, 4, 1}})
        result.push_back({zero % 2 == 0 ? Family::llama : Family::gpt2, ranks, 4, every, zero,
                          delay, group, Precision::bf16, tree});
  return result;
}

std::vector<Schedule> schedules(const Layout& l) {
  GraphShape shape;
  shape.batch = 1;
  shape.tokens = kTokens;
  shape.micro_batches = l.micro_batches;
  shape.loss_tokens = kTokens * l.micro_batches * l.ranks;
  const Graph forward = build_model(tiny(l.family), l.precision, 3, shape, GraphMode::train);
  std::vector<Schedule> result;
  for (int rank = 0; rank < l.ranks; ++rank) {
    ParallelSpec spec;
    spec.ranks = l.ranks;
    spec.rank = rank;
    spec.zero = l.zero;
    spec.micro_batches = l.micro_batches;
    spec.reduce_every = l.reduce_every;
    spec.tree = l.tree;
    result.push_back(build_train_schedule(
        forward, OptimizerConfig{}, spec,
        {.reduce_delay = l.delay, .gather_ahead = l.delay, .group = l.group, .zero = l.stages}));
  }
  return result;
}

// How often each element of a tensor is touched.
class Coverage {
 public:
  explicit Coverage(const Graph& g) : graph_(g) {}
  void add(const Operand& operand, int64_t shift = 0) {
    std::vector<int>& counts = of(operand.tensor);
    const int64_t count = operand.count < 0 ? static_cast<int64_t>(counts.size()) : operand.count;
    ASSERT_LE(operand.begin + shift + count, static_cast<int64_t>(counts.size()));
    for (int64_t i = 0; i < count; ++i) ++counts[operand.begin + shift + i];
  }
  std::vector<int>& of(TensorId id) {
    std::vector<int>& counts = counts_[id];
    counts.resize(graph_.tensors[id].dims.count());
    return counts;
  }
  bool all_are(TensorId id, int value) {
    const std::vector<int>& counts = of(id);
    return std::all_of(counts.begin(), counts.end(), [&](int c) { return c == value; });
  }

 private:
  const Graph& graph_;
  std::map<TensorId, std::vector<int>> counts_;
};

TEST(ScheduleTest, StagesCoverTheMicroBatches) {
  for (const Layout& l : layouts()) {
    SCOPED_TRACE(l.text());
    const Schedule s = schedules(l)[0];
    int micro = 0;
    for (size_t i = 0; i + 1 < s.stages.size(); ++i) {
      const Stage& stage = s.stages[i];
      EXPECT_EQ(stage.micro_base, micro);
      EXPECT_GE(stage.trip, 1);
      for (int k = 0; k < stage.trip; ++k, micro += l.group)
        for (const Visit& visit : stage.visits) {
          ASSERT_LT(visit.micro, l.group);
          const Node& node = s.graph.nodes[visit.node];
          if (node.kind == NodeKind::op &&
              (node.pass == Pass::forward || node.pass == Pass::backward)) {
            EXPECT_EQ(visit.accumulate, (micro + visit.micro) % l.reduce_every != 0);
          }
        }
    }
    EXPECT_EQ(micro, l.micro_batches);
    EXPECT_EQ(s.stages.back().name, "update");
    EXPECT_EQ(s.stages.back().trip, 1);
    EXPECT_EQ(s.stages[0].name, l.micro_batches == l.group ? "only" : "first");
    if (l.reduce_every == l.micro_batches && l.group == 1) {
      EXPECT_EQ(s.stages.size(), std::min<size_t>(l.micro_batches, 3) + 1);
    }
  }
}

// The k-th exchange of every rank is the same one, and its sends meet receives of equal size.
TEST(ScheduleTest, ExchangesMatchAcrossRanks) {
  int64_t checked = 0;
  for (const Layout& l : layouts()) {
    SCOPED_TRACE(l.text());
    const std::vector<Schedule> all = schedules(l);
    std::vector<std::vector<const Node*>> exchanges(all.size());
    for (size_t rank = 0; rank < all.size(); ++rank) {
      ASSERT_EQ(all[rank].stages.size(), all[0].stages.size());
      for (size_t i = 0; i < all[rank].stages.size(); ++i) {
        const Stage &stage = all[rank].stages[i], &first = all[0].stages[i];
        EXPECT_EQ(stage.trip, first.trip);
        for (const Visit& visit : stage.visits)
          if (all[rank].graph.nodes[visit.node].kind == NodeKind::exchange)
            exchanges[rank].push_back(&all[rank].graph.nodes[visit.node]);
      }
      // The same tensors of the same sizes, so that one placement serves all ranks.
      ASSERT_EQ(all[rank].graph.tensors.size(), all[0].graph.tensors.size());
      for (size_t t = 0; t < all[0].graph.tensors.size(); ++t) {
        EXPECT_EQ(all[rank].graph.tensors[t].name, all[0].graph.tensors[t].name);
        EXPECT_EQ(all[rank].graph.tensors[t].dims, all[0].graph.tensors[t].dims);
      }
    }
    if (l.ranks == 1) {
      EXPECT_TRUE(exchanges[0].empty());
      continue;
    }
    for (size_t rank = 0; rank < all.size(); ++rank) {
      ASSERT_EQ(exchanges[rank].size(), exchanges[0].size());
      for (size_t k = 0; k < exchanges[rank].size(); ++k) {
        EXPECT_EQ(exchanges[rank][k]->name, exchanges[0][k]->name);
        for (int peer = 0; peer < l.ranks; ++peer) {
          if (peer == static_cast<int>(rank)) continue;
          std::vector<int64_t> sent, received;
          golden::each_message(*exchanges[rank][k], true, [&](int to, const Operand& o) {
            EXPECT_NE(to, static_cast<int>(rank));
            if (to == peer) sent.push_back(o.count);
          });
          golden::each_message(*exchanges[peer][k], false, [&](int from, const Operand& o) {
            if (from == static_cast<int>(rank)) received.push_back(o.count);
          });
          EXPECT_EQ(sent, received) << exchanges[rank][k]->name;
          checked += static_cast<int64_t>(sent.size());
        }
      }
    }
  }
  EXPECT_GT(checked, 1000);
}

// The same range of the whole parameter, for a range of a rank's shard of it.
Operand in_parameter(const Schedule& s, Operand o) {
  for (const Param& p : s.graph.params) {
    if (p.shard != o.tensor) continue;
    o.tensor = p.param;
    int64_t at = 0;
    for (const Range& r : p.own) {
      if (o.begin >= at && o.begin < at + r.count) {
        o.begin += r.begin - at;
        return o;
      }
      at += r.count;
    }
  }
  return o;
}

// What a rank sends of a gathered parameter is there, what it receives and copies is the whole
// parameter, and no op reads one before.
TEST(ScheduleTest, GatheredParametersAreWholeBeforeTheyAreRead) {
  int64_t read = 0;
  for (const Layout& l : layouts()) {
    if (l.zero != 3 || l.ranks == 1) continue;
    SCOPED_TRACE(l.text());
    for (const Schedule& s : schedules(l)) {
      const Graph& g = s.graph;
      for (const Stage& stage : s.stages) {
        std::map<std::pair<Pass, int32_t>, Coverage> there;
        for (const Visit& visit : stage.visits) {
          const Node& node = g.nodes[visit.node];
          Coverage& covered = there.try_emplace({node.pass, node.layer}, g).first->second;
          for (const Operand& in : node.in) {
            if (g.tensors[in.tensor].role != Role::gathered) continue;
            if (node.kind == NodeKind::exchange) {  // sends on what there is
              const std::vector<int>& counts = covered.of(in.tensor);
              for (int64_t i = 0; i < in.count; ++i)
                EXPECT_EQ(counts[in.begin + i], 1) << node.name;
              continue;
            }
            EXPECT_TRUE(covered.all_are(in.tensor, 1)) << node.name;
            ++read;
          }
          for (const Operand& out : node.out)
            if (g.tensors[out.tensor].role == Role::gathered) covered.add(out);
        }
      }
    }
  }
  EXPECT_GT(read, 1000);
}

TEST(ScheduleTest, EveryElementIsSummedOnceAGroupAndUpdatedOnce) {
  for (const Layout& l : layouts()) {
    SCOPED_TRACE(l.text());
    const std::vector<Schedule> all = schedules(l);
    const Graph& g = all[0].graph;
    const bool sums = l.ranks > 1 || l.reduce_every < l.micro_batches;
    const bool short_lived =
        l.group % l.reduce_every == 0 && (l.group > l.reduce_every || (l.ranks > 1 && l.zero >= 2));
    Coverage updated(g), known(g), partials(g);
    std::map<size_t, Coverage> summed;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const Schedule& s = all[rank];
      for (size_t i = 0; i < s.stages.size(); ++i) {
        for (const Visit& visit : s.stages[i].visits) {
          const Node& node = s.graph.nodes[visit.node];
          if (node.kind == NodeKind::op && node.op == OpKind::rank_sum) {
            const bool across = s.graph.tensors[node.in[0].tensor].role == Role::node_staging;
            const int nodes = l.ranks / l.tree;
            const int width = !l.two_levels() ? l.ranks : across ? nodes : l.tree;
            EXPECT_EQ(node.attrs.ranks, width);
            EXPECT_EQ(node.attrs.rank, static_cast<int>(!l.two_levels() ? rank
                                                        : across        ? rank / l.tree
                                                                        : rank % l.tree));
            EXPECT_EQ(node.attrs.inner, across ? 1 : l.tree);
            // On two levels every node sums the whole parameter over its ranks.
            if (!across) summed.try_emplace(i, g).first->second.add(node.in[0]);
          }
          if (node.kind == NodeKind::op && node.op == OpKind::norm_partials)
            partials.add(node.out[0]);
          if (node.kind == NodeKind::op && node.op == OpKind::adamw)
            updated.add(in_parameter(s, node.out.size() == 4 ? node.out[3] : node.out[0]));
          if (node.kind == NodeKind::exchange && node.pass == Pass::update)
            for (const Operand& out : node.out) known.add(out);
        }
      }
    }
    int groups = 0;
    for (size_t i = 0; i + 1 < all[0].stages.size(); ++i) {
      const Stage& stage = all[0].stages[i];
      const int micro_batches = stage.trip * l.group, end = stage.micro_base + micro_batches;
      // Reductions that end in one iteration.
      const int reductions =
          (stage.micro_base + l.group) / l.reduce_every - stage.micro_base / l.reduce_every;
      groups += end / l.reduce_every - stage.micro_base / l.reduce_every;
      EXPECT_EQ(summed.contains(i), sums && reductions > 0);
      if (!summed.contains(i)) continue;
      for (const Param& p : g.params)
        EXPECT_TRUE(
            summed.at(i).all_are(p.grads[0], reductions * (l.two_levels() ? l.ranks / l.tree : 1)))
            << g.tensors[p.param].name;
    }
    EXPECT_EQ(groups, l.micro_batches / l.reduce_every);
    EXPECT_TRUE(partials.all_are(g.find("norm_partials"), 1));
    const bool sharded = l.zero >= 1 && l.ranks > 1;
    for (const Param& p : g.params) {
      EXPECT_EQ(p.shard != kNone, l.zero == 3 && l.ranks > 1);
      EXPECT_EQ(g.tensors[p.grads[0]].role, short_lived ? Role::partial_grad : Role::grad);
      EXPECT_TRUE(updated.all_are(p.param, sharded ? 1 : l.ranks)) << g.tensors[p.param].name;
      EXPECT_TRUE(known.all_are(p.param, sharded && l.zero < 3 ? l.ranks - 1 : 0))
          << g.tensors[p.param].name;
      for (TensorId state : {p.moment1, p.moment2}) {
        const int64_t total = g.tensors[p.param].dims.count();
        EXPECT_EQ(g.tensors[state].dims.count(), sharded ? shard_capacity(total, l.ranks) : total);
      }
    }
  }
}

TEST(ScheduleTest, LargeTablesAreCutAtBlocks) {
  const Schedule s = schedules({Family::llama, 2, 1, 1, 1, 0})[0];
  const std::vector<Unit> units = make_units(s.graph, 2);
  std::map<int32_t, int> per_layer;
  int64_t largest_block = 0;
  for (const Unit& unit : units) {
    ++per_layer[unit.layer];
    int64_t elements = 0;
    for (const Piece& piece : unit.pieces) {
      const int64_t total = s.graph.tensors[s.graph.params[piece.param].param].dims.count();
      EXPECT_EQ(piece.begin % block_elements(total), 0);
      elements += piece.count;
    }
    if (unit.layer == 1 || unit.layer == 2) {
      largest_block = std::max(largest_block, elements);
    }
  }
  for (const Unit& unit : units) {
    int64_t elements = 0;
    for (const Piece& piece : unit.pieces) elements += piece.count;
    EXPECT_LE(elements, largest_block);
  }
  EXPECT_EQ(per_layer[1], 1);
  EXPECT_EQ(per_layer[2], 1);
  EXPECT_GT(per_layer[0], 1);
}

// With a delay, some other backward work stands between an exchange and the first sum that needs
// it.
TEST(ScheduleTest, DelayLeavesRoomForTheExchange) {
  const Schedule s = schedules({Family::llama, 2, 1, 1, 1, 1})[0];
  int64_t with_work_between = 0;
  const Stage& stage = s.stages[0];
  std::map<TensorId, size_t> staged;
  for (size_t i = 0; i < stage.visits.size(); ++i) {
    const Node& node = s.graph.nodes[stage.visits[i].node];
    if (node.kind == NodeKind::exchange) {
      for (const Operand& out : node.out) staged[out.tensor] = i;
    } else if (node.op == OpKind::rank_sum) {
      bool backward = false;
      for (size_t k = staged.at(node.in[1].tensor); k < i; ++k)
        backward |= s.graph.nodes[stage.visits[k].node].pass == Pass::backward;
      with_work_between += backward && node.layer <= s.graph.layers && node.layer > 0;
    }
  }
  EXPECT_GT(with_work_between, 10);
}

// Whatever stages the layers have: no node of the step reads or gathers what a rotated update has
// yet to write.
TEST(ScheduleTest, RotatedUpdatesComeBeforeEveryReader) {
  constexpr int kLayers = 4;  // of tiny(), embedding and head included
  for (const Family family : {Family::gpt2, Family::llama})
    for (int mix = 0; mix < 256; ++mix) {
      const int delay = mix % 3 == 0;
      GraphShape shape{1, kTokens, 2, 2 * 2 * kTokens};
      ScheduleChoice choice{.reduce_delay = delay, .gather_ahead = mix % 2};
      for (int layer = 0; layer < kLayers; ++layer) choice.zero.push_back(mix >> 2 * layer & 3);
      choice.update.assign(kLayers, UpdatePosition::rotated);
      ParallelSpec spec{.ranks = 2, .rank = mix % 2, .micro_batches = 2, .reduce_every = 2};
      const Schedule s = build_train_schedule(
          build_model(tiny(family), Precision::bf16, 3, shape, GraphMode::train), OptimizerConfig{},
          spec, choice);
      std::map<TensorId, size_t> updated;  // by tensor: its last update
      const std::vector<Visit>& visits = s.stages[0].visits;
      for (size_t i = 0; i < visits.size(); ++i)
        if (const Node& node = s.graph.nodes[visits[i].node]; node.pass == Pass::update)
          for (const Operand& out : node.out) updated[out.tensor] = i;
      EXPECT_GT(updated.size(), 10u);
      for (size_t i = 0; i < visits.size(); ++i) {
        const Node& node = s.graph.nodes[visits[i].node];
        if (node.pass == Pass::update) continue;
        for (const Operand& in : node.in) {
          const auto update = updated.find(in.tensor);
          EXPECT_TRUE(update == updated.end() || update->second < i)
              << node.name << ", stages " << mix << ", delay " << delay;
        }
      }
    }
}

struct Trained {
  std::map<std::string, std::vector<double>> state;  // of every rank: "rank name"
  std::vector<double> losses, norms;                 // by step
};

Trained train(const Layout& l, int steps) {
  const std::vector<Schedule> all = schedules(l);
  std::vector<golden::Interpreter> ranks;
  for (const Schedule& s : all) ranks.emplace_back(s, reference::kernel, true);
  std::mt19937_64 random(11);
  std::normal_distribution<double> normal(0, 0.2);
  for (size_t i = 0; i < all[0].graph.params.size(); ++i) {
    std::vector<double> weight(all[0].graph.params[i].live.count());
    for (double& w : weight) w = normal(random);
    for (auto& rank : ranks) golden::load_parameter(rank, rank.schedule().graph.params[i], weight);
  }
  Trained result;
  for (int step = 1; step <= steps; ++step) {
    StepScalars scalars;
    scalars.step = step;
    scalars.lr = 0.01f;
    scalars.beta1_correction = static_cast<float>(1 - std::pow(0.9, step));
    scalars.beta2_correction = static_cast<float>(1 - std::pow(0.95, step));
    for (auto& rank : ranks) *rank.data<StepScalars>("scalars") = scalars;
    const auto load = [&](int rank, int32_t micro) {
      // Samples of the global batch go to the ranks in turn, micro-batch by micro-batch.
      const int sample = rank * l.micro_batches + micro;
      std::mt19937_64 draw(1000 * step + sample);
      std::vector<int32_t> tokens(kTokens), targets(kTokens);
      for (int32_t& t : tokens) t = static_cast<int32_t>(draw() % 200);
      for (int32_t& t : targets) t = static_cast<int32_t>(draw() % 200);
      golden::load_batch(ranks[rank], tokens.data(), targets.data(), kTokens);
    };
    golden::run_step(ranks, load);
    const StepScalars after = *ranks[0].data<StepScalars>("scalars");
    result.losses.push_back(after.loss);
    result.norms.push_back(after.norm);
    for (auto& rank : ranks) {
      EXPECT_EQ(rank.data<StepScalars>("scalars")->norm, after.norm);
      EXPECT_EQ(rank.data<StepScalars>("scalars")->loss, after.loss);
    }
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    for (size_t i = 0; i < all[rank].graph.params.size(); ++i) {
      const Param& p = all[rank].graph.params[i];
      const std::string& name = all[rank].graph.tensors[p.param].name;
      std::vector<double> weights = ranks[rank].get(name);
      if (p.shard != kNone)
        for (size_t owner = 0; owner < ranks.size(); ++owner) {
          const std::vector<double> shard = ranks[owner].get(name + ".shard");
          auto from = shard.begin();
          for (const Range& own : all[owner].graph.params[i].own) {
            std::copy_n(from, own.count, weights.begin() + own.begin);
            from += own.count;
          }
        }
      result.state[std::to_string(rank) + " " + name] = std::move(weights);
    }
  return result;
}

TEST(ScheduleNumbersTest, ZeroStagesDelaysAndGroupsGiveTheSameBitsOnAllRanks) {
  std::mt19937_64 random(std::random_device{}());
  for (Layout l : layouts()) {
    if (l.zero != 0 || (l.ranks <= 3 && (l.delay != 0 || l.group != 1))) continue;
    if (l.ranks > 3) l.delay = 0, l.group = 1;
    const int micro_batches = l.micro_batches;
    SCOPED_TRACE(l.text());
    const Trained base = train(l, 2);
    for (const auto& [key, values] : base.state) {
      EXPECT_EQ(values, base.state.at("0" + key.substr(1))) << key << " differs from rank 0";
      for (double v : values) ASSERT_TRUE(std::isfinite(v)) << key;
    }
    for (const auto& [zero, delay] :
         {std::pair{0, 0}, std::pair{0, 1}, std::pair{1, 0}, std::pair{1, 1}, std::pair{2, 0},
          std::pair{2, 1}, std::pair{3, 0}, std::pair{3, 1}}) {
      for (int group = 1; group <= micro_batches; group *= 2) {
        l.zero = zero;
        l.delay = delay;
        l.group = group;
        // Every stage alone, and a mixture by layer.
        l.stages.clear();
        if (zero == 3 && delay == 1)
          for (int layer = 0; layer < 4; ++layer)
            l.stages.push_back(static_cast<int32_t>(random() % 4));
        SCOPED_TRACE(l.text() + (l.stages.empty() ? "" : " mixed"));
        const Trained other = train(l, 2);
        EXPECT_EQ(other.losses, base.losses);
        EXPECT_EQ(other.norms, base.norms);
        for (const auto& [key, values] : base.state) EXPECT_EQ(values, other.state.at(key)) << key;
      }
    }
  }
}

TEST(ScheduleNumbersTest, AnyLayoutOfOneBatchTrainsTheSameModel) {
  for (const Family family : {Family::gpt2, Family::llama}) {
    const Trained base = train({family, 1, 4, 4, 0, 0}, 3);
    for (const auto& [ranks, micro_batches] : {std::pair{1, 4}, std::pair{2, 2}, std::pair{4, 1}}) {
      for (int every = 1; every <= micro_batches; every *= 2) {
        const Layout l{family, ranks, micro_batches, every, 1, 0};
        SCOPED_TRACE(l.text());
        const Trained other = train(l, 3);
        for (size_t step = 0; step < 3; ++step) {
          EXPECT_NEAR(other.losses[step], base.losses[step], 1e-11);
          EXPECT_NEAR(other.norms[step], base.norms[step], 1e-10);
        }
        for (const auto& [key, values] : base.state) {
          EXPECT_LE(golden::relative_error(other.state.at(key), values), 1e-9) << key;
        }
      }
    }
  }
}

TEST(ParallelSpecTest, DividesTheBatch) {
  Config config;
  config.train.batch = 24;
  config.train.micro_batch = 2;
  config.parallel.zero = 1;
  ParallelSpec spec = parallel_spec(config, 1, 3, 2);
  EXPECT_EQ(spec.micro_batches, 4);
  EXPECT_EQ(spec.reduce_every, 4);
  EXPECT_EQ(spec.tree, 2);
  EXPECT_EQ(spec.rank, 1);
  config.parallel.reduce_every = 2;
  config.parallel.tree = 3;
  spec = parallel_spec(config, 0, 3, 2);
  EXPECT_EQ(spec.reduce_every, 2);
  EXPECT_EQ(spec.tree, 3);
  config.parallel.reduce_every = 3;
  EXPECT_THROW(parallel_spec(config, 0, 3, 2), Error);
  config.parallel.reduce_every = 0;
  EXPECT_THROW(parallel_spec(config, 0, 5, 5), Error);
}

}  // namespace
}  // namespace spillway
