// Forward graphs of the model families, differentiation and recomputation.
// links: spillway_parallel spillway_model
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

#include "graph/builder.h"
#include "model/model.h"

namespace spillway {
namespace {

ModelConfig tiny(Family family) {
  ModelConfig c;
  c.family = family;
  c.layers = 3;
  c.hidden = 48;
  c.heads = 4;
  c.kv_heads = family == Family::gpt2 ? 4 : 2;
  c.head_dim = 16;
  c.ffn = 72;
  c.context = 32;
  c.vocab = 131;
  c.tied_head = family == Family::gpt2;
  return c;
}

Graph build(const ModelConfig& c, Precision precision = Precision::bf16,
            GraphMode mode = GraphMode::train) {
  GraphShape shape;
  shape.batch = mode == GraphMode::train ? 2 : 1;
  shape.tokens = mode == GraphMode::decode ? 1 : c.context;
  shape.micro_batches = 4;
  shape.loss_tokens = 256;
  return build_model(c, precision, 0, shape, mode);
}

const Tensor& at(const Graph& g, const std::string& name) {
  const TensorId id = g.find(name);
  if (id == kNone) throw std::runtime_error("no tensor " + name);
  return g.tensors[id];
}

const Node& producer(const Graph& g, const std::string& name) {
  for (const Node& node : g.nodes)
    for (const Operand& out : node.out)
      if (g.tensors[out.tensor].name == name) return node;
  throw std::runtime_error("nothing produces " + name);
}

ModelConfig published(Family family, int64_t layers, int64_t hidden, int64_t heads, int64_t kv,
                      int64_t head_dim, int64_t ffn, int64_t vocab, bool tied) {
  ModelConfig c;
  c.family = family;
  c.layers = layers;
  c.hidden = hidden;
  c.heads = heads;
  c.kv_heads = kv;
  c.head_dim = head_dim;
  c.ffn = ffn;
  c.vocab = vocab;
  c.context = 1024;
  c.tied_head = tied;
  return c;
}

TEST(ModelTest, CountsTheParametersOfPublishedModels) {
  const ModelConfig gpt2 = published(Family::gpt2, 12, 768, 12, 12, 64, 3072, 50257, true);
  EXPECT_EQ(parameter_count(gpt2), 124439808);
  EXPECT_EQ(parameter_count(published(Family::llama, 32, 4096, 32, 8, 128, 14336, 128256, false)),
            8030261248);
  ModelConfig qwen3 = published(Family::llama, 28, 1024, 16, 8, 128, 3072, 151936, true);
  qwen3.qk_norm = true;
  EXPECT_EQ(parameter_count(qwen3), 596049920);
  EXPECT_DOUBLE_EQ(model_flops_per_token(gpt2), 6.0 * 124439808 + 12.0 * 12 * 1024 * 768);
}

TEST(ModelTest, LossChunkIsBounded) {
  EXPECT_EQ(default_loss_chunk(128, 100), 100);
  EXPECT_EQ(default_loss_chunk(128256, 100000), 130);
  EXPECT_EQ(default_loss_chunk(1 << 20, 100000), 128);
}

TEST(ModelTest, LlamaShapesDtypesAndLayers) {
  ModelConfig c = tiny(Family::llama);
  c.qkv_bias = true;
  const Graph g = build(c);
  EXPECT_EQ(g.layers, 3);
  EXPECT_EQ(at(g, "embed.weight").dims, Dims(256, 48));
  EXPECT_EQ(at(g, "embed.weight").layer, 0);
  EXPECT_EQ(at(g, "head.weight").layer, 4);
  EXPECT_EQ(at(g, "blk.2.qkv.weight").dims, Dims(128, 48));
  EXPECT_EQ(at(g, "blk.2.qkv.weight").dtype, Dtype::bf16);
  EXPECT_EQ(at(g, "blk.2.qkv.weight").layer, 3);
  EXPECT_EQ(at(g, "blk.2.qkv.bias").dtype, Dtype::f32);
  EXPECT_EQ(at(g, "blk.2.up.weight").dims, Dims(144, 48));
  EXPECT_EQ(at(g, "blk.2.proj.weight").dims, Dims(48, 64));
  EXPECT_EQ(at(g, "blk.1.ffn_act").dims, Dims(64, 72));
  EXPECT_EQ(at(g, "blk.0.resid").layer, 1);
  EXPECT_EQ(producer(g, "blk.0.resid").layer, 0);
  EXPECT_EQ(at(g, "losses").dims, Dims(4));
  EXPECT_EQ(at(g, "losses").dtype, Dtype::f64);
  for (int k = 0; k < 3; ++k) {
    const std::string blk = "blk." + std::to_string(k) + ".";
    EXPECT_TRUE(at(g, blk + "resid").anchor);
    EXPECT_FALSE(at(g, blk + "ffn_resid").anchor);
    for (const char* name : {"attn_norm", "qkv", "attn_out", "attn_proj", "ffn_resid", "ffn_norm",
                             "ffn_up", "ffn_act", "ffn_down"}) {
      EXPECT_EQ(at(g, blk + name).place, name);
      EXPECT_EQ(at(g, blk + name).dtype, Dtype::bf16);
      EXPECT_EQ(at(g, blk + name).layer, k + 1);
    }
    EXPECT_EQ(at(g, blk + "attn_norm.stats").place, "attn_norm");
    EXPECT_EQ(at(g, blk + "attn_out.lse").place, "attn_out");
  }
  EXPECT_EQ(producer(g, "blk.0.qkv").alias.size(), 1u) << "rope turns in place";
  c.qk_norm = true;
  const Graph normed = build(c);
  EXPECT_EQ(producer(normed, "blk.0.qkv").alias.size(), 0u);
  EXPECT_EQ(at(normed, "blk.0.qkv_lin").place, "qkv_lin");
  EXPECT_EQ(at(normed, "blk.0.q_norm.weight").dims, Dims(16));
}

TEST(ModelTest, InitialisationAndDecay) {
  const Graph g = build(tiny(Family::gpt2));
  int matrices = 0;
  for (const Param& p : g.params) {
    const Tensor& t = g.tensors[p.param];
    const bool matrix = t.dims.rank == 2;
    matrices += matrix;
    EXPECT_EQ(p.decay, matrix) << t.name;
    EXPECT_EQ(t.dtype, matrix ? Dtype::bf16 : Dtype::f32) << t.name;
    const bool residual = t.name.ends_with("proj.weight") || t.name.ends_with("down.weight");
    if (matrix) {
      EXPECT_EQ(p.init, Init::normal);
      EXPECT_NEAR(p.std, residual ? 0.02 / std::sqrt(6.0) : 0.02, 1e-12) << t.name;
    } else {
      EXPECT_EQ(p.init, t.name.ends_with("norm.weight") ? Init::ones : Init::zeros) << t.name;
    }
  }
  EXPECT_EQ(matrices, 2 + 3 * 4);
  EXPECT_EQ(g.params[0].live, Dims(131, 48));
}

TEST(ModelTest, DecodingReadsAndExtendsCaches) {
  for (const Family family : {Family::gpt2, Family::llama}) {
    for (const GraphMode mode : {GraphMode::prefill, GraphMode::decode}) {
      const ModelConfig c = tiny(family);
      const Graph g = build(c, Precision::bf16, mode);
      EXPECT_EQ(at(g, "logits").dims, Dims(1, 256));
      EXPECT_EQ(at(g, "logits").dtype, Dtype::f32);
      EXPECT_EQ(at(g, "blk.2.k_cache").dims, Dims(c.context, c.kv_heads * 16));
      EXPECT_EQ(at(g, "blk.2.k_cache").role, Role::kv_cache);
      const Node& attention = producer(g, "blk.2.attn_out");
      EXPECT_EQ(attention.op, OpKind::attention_cached);
      EXPECT_EQ(attention.in[1].tensor, attention.out[1].tensor);
      EXPECT_EQ(g.tensors[attention.in.back().tensor].name, "scalars");
      EXPECT_EQ(attention.attrs.context, c.context);
      // The parameters are those of the training graph, by name and shape.
      const Graph train = build(c);
      ASSERT_EQ(g.params.size(), train.params.size());
      for (size_t i = 0; i < g.params.size(); ++i) {
        EXPECT_EQ(g.tensors[g.params[i].param].name, train.tensors[train.params[i].param].name);
        EXPECT_EQ(g.tensors[g.params[i].param].dims, train.tensors[train.params[i].param].dims);
      }
    }
  }
}

TEST(DifferentiateTest, EveryParameterGetsOneAccumulatorAUse) {
  for (const Family family : {Family::gpt2, Family::llama}) {
    const ModelConfig c = tiny(family);
    const Graph forward = build(c);
    const Graph g = differentiate(forward);
    std::set<std::string> names;
    for (const Tensor& t : g.tensors) EXPECT_TRUE(names.insert(t.name).second) << t.name;
    for (const Param& p : g.params) {
      const bool twice = c.tied_head && g.tensors[p.param].name == "embed.weight";
      ASSERT_EQ(p.grads.size(), twice ? 2u : 1u) << g.tensors[p.param].name;
      for (TensorId grad : p.grads) {
        EXPECT_EQ(g.tensors[grad].dtype, Dtype::f32);
        EXPECT_EQ(g.tensors[grad].dims, g.tensors[p.param].dims);
        EXPECT_EQ(g.tensors[grad].layer, g.tensors[p.param].layer);
        int writers = 0;
        for (const Node& node : g.nodes)
          for (const Operand& out : node.out) {
            if (out.tensor != grad) continue;
            ++writers;
            EXPECT_TRUE(out.accumulate) << node.name;
            EXPECT_EQ(node.pass, Pass::backward) << node.name;
          }
        EXPECT_EQ(writers, 1) << g.tensors[grad].name;
      }
    }
  }
}

// What a node reads was written before it, and an input taken over by an output is read by no
// later node.
TEST(DifferentiateTest, ValuesAreWrittenOnceBeforeTheyAreReadAndNotAfterTheyDie) {
  for (const Family family : {Family::gpt2, Family::llama}) {
    for (const bool qk_norm : {false, true}) {
      if (family == Family::gpt2 && qk_norm) continue;
      ModelConfig c = tiny(family);
      c.qk_norm = qk_norm;
      const Graph g = differentiate(build(c));
      std::set<TensorId> written, dead;
      for (const Node& node : g.nodes) {
        for (const Operand& in : node.in) {
          if (g.tensors[in.tensor].role != Role::activation) continue;
          EXPECT_TRUE(written.contains(in.tensor)) << node.name << g.tensors[in.tensor].name;
          EXPECT_FALSE(dead.contains(in.tensor)) << node.name << g.tensors[in.tensor].name;
        }
        for (const auto& [out, in] : node.alias) dead.insert(node.in[in].tensor);
        for (const Operand& out : node.out)
          if (g.tensors[out.tensor].role == Role::activation) {
            EXPECT_TRUE(written.insert(out.tensor).second)
                << g.tensors[out.tensor].name << " is written twice";
          }
      }
      EXPECT_EQ(producer(g, "losses").op, OpKind::head_loss_grad);
    }
  }
}

TEST(DifferentiateTest, RefusesATensorWithTwoGradients) {
  Graph g = build(tiny(Family::llama));
  for (Node& node : g.nodes)
    if (node.name == "blk.1.ffn_norm.forward") node.in[1] = node.in[0];
  try {
    differentiate(g);
    FAIL() << "two gradients were accepted";
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("blk.1.resid would get two gradients"), std::string::npos)
        << e.what();
  }
}

TEST(RecomputeTest, NormOfASumThatExistsDoesNotAddAgain) {
  for (const Family family : {Family::gpt2, Family::llama}) {
    const Graph g = build(tiny(family));
    const Node& norm = producer(g, "blk.1.ffn_norm");
    std::vector<bool> available(g.tensors.size(), false);
    const auto there = [&](TensorId id) { return available[id]; };
    const Node whole = recompute_node(norm, there);
    EXPECT_TRUE(whole.attrs.residual);
    EXPECT_EQ(whole.out.size(), 3u);
    EXPECT_EQ(whole.pass, Pass::backward);

    const TensorId sum = g.find("blk.1.ffn_resid");
    available[sum] = true;
    const Node alone = recompute_node(norm, there);
    EXPECT_FALSE(alone.attrs.residual);
    ASSERT_EQ(alone.in.size(), norm.in.size() - 1);
    EXPECT_EQ(alone.in[0].tensor, sum);
    EXPECT_EQ(alone.in[1].tensor, g.find("blk.1.ffn_norm.weight"));
    ASSERT_EQ(alone.out.size(), 2u);
    EXPECT_EQ(alone.out[0].tensor, g.find("blk.1.ffn_norm"));
  }
}

}  // namespace
}  // namespace spillway
