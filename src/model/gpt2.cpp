// GPT-2: LayerNorm before each branch, learned positions, GELU (tanh form), biases everywhere.
#include <string>

#include "model/common.h"

namespace spillway {
namespace {

// A branch's output that still waits to be added to the residual stream.
struct Stream {
  TensorId residual = kNone, delta = kNone;
};

// Adds the waiting branch, then norms: returns the normed activations and advances the stream.
TensorId norm(ModelBuilder& m, Stream& stream, const std::string& prefix, const std::string& sum,
              const std::string& name, bool anchor) {
  const std::string parameter = prefix + name;
  const TensorId weight = m.vector(parameter + ".weight", m.model.hidden, Init::ones);
  const TensorId bias = m.vector(parameter + ".bias", m.model.hidden, Init::zeros);
  Attrs attrs = m.attrs;
  attrs.residual = stream.delta != kNone;
  if (!attrs.residual)
    return m.b.op(OpKind::layernorm, attrs, {stream.residual, weight, bias}, prefix,
                  {name, name + ".stats"})[0];
  const std::vector<TensorId> out =
      m.b.op(OpKind::layernorm, attrs, {stream.residual, stream.delta, weight, bias}, prefix,
             {sum, name, name + ".stats"});
  m.b.graph.tensors[out[0]].anchor = anchor;
  stream = {out[0], kNone};
  return out[1];
}

// y[rows, outputs] = x · wᵀ + bias; parameters "<prefix><parameter>.weight" and ".bias".
TensorId linear(ModelBuilder& m, TensorId x, int64_t inputs, int64_t outputs,
                const std::string& prefix, const std::string& parameter, const std::string& name,
                double std) {
  const TensorId weight = m.matrix(prefix + parameter + ".weight", outputs, inputs, std);
  const TensorId bias = m.vector(prefix + parameter + ".bias", outputs, Init::zeros);
  return m.matmul(x, weight, bias, prefix, name);
}

void block(ModelBuilder& m, Stream& stream, const std::string& prefix) {
  const ModelConfig& c = m.model;
  const TensorId attn_norm = norm(m, stream, prefix, "resid", "attn_norm", true);
  const TensorId qkv =
      linear(m, attn_norm, c.hidden, m.qkv_width(), prefix, "qkv", "qkv", c.init_std);
  const TensorId attn_out = m.attention(qkv, prefix);
  stream.delta = linear(m, attn_out, c.heads * c.head_dim, c.hidden, prefix, "proj", "attn_proj",
                        m.residual_std());

  const TensorId ffn_norm = norm(m, stream, prefix, "ffn_resid", "ffn_norm", false);
  const TensorId up = linear(m, ffn_norm, c.hidden, c.ffn, prefix, "up", "ffn_up", c.init_std);
  const TensorId act = m.b.op(OpKind::gelu, m.attrs, {up}, prefix, {"ffn_act"})[0];
  stream.delta = linear(m, act, c.ffn, c.hidden, prefix, "down", "ffn_down", m.residual_std());
}

}  // namespace

Graph build_gpt2(ModelBuilder m) {
  const ModelConfig& c = m.model;
  m.b.layer = 0;
  const TensorId embed = m.table("embed.weight");
  const TensorId positions = m.matrix("pos_embed.weight", c.context, c.hidden, c.init_std);
  std::vector<TensorId> in = {embed, m.tokens, positions};
  if (m.decoding()) in.push_back(m.scalars);
  Attrs attrs = m.attrs;
  attrs.bias = true;
  Stream stream;
  stream.residual = m.b.op(OpKind::embedding, attrs, in, "blk.0.", {"resid"})[0];
  Tensor& resid = m.b.graph.tensors[stream.residual];
  resid.layer = 1;
  resid.anchor = true;

  for (int64_t k = 0; k < c.layers; ++k) {
    m.b.layer = static_cast<int32_t>(k + 1);
    block(m, stream, "blk." + std::to_string(k) + ".");
  }

  m.b.layer = static_cast<int32_t>(c.layers + 1);
  const TensorId normed = norm(m, stream, "", "final_resid", "final_norm", true);
  m.head(normed, c.tied_head ? embed : m.table("head.weight"));
  return std::move(m.b.graph);
}

}  // namespace spillway
