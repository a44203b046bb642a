// Llama and its kin (Qwen2, Qwen3): RMSNorm before each branch, rotary positions with optional
// Llama-3 scaling, SwiGLU, grouped KV heads, optional biases on qkv and norms of q and k.
#include <string>

#include "model/common.h"

namespace spillway {
namespace {

// The residual stream, and a branch's output that still waits to be added to it.
struct Stream {
  TensorId residual = kNone, delta = kNone;
};

// Adds the waiting branch, then norms: returns the normed activations and advances the stream.
TensorId norm(ModelBuilder& m, Stream& stream, const std::string& prefix, const std::string& sum,
              const std::string& name, bool anchor) {
  const TensorId weight = m.vector(prefix + name + ".weight", m.model.hidden, Init::ones);
  Attrs attrs = m.attrs;
  attrs.residual = stream.delta != kNone;
  if (!attrs.residual)
    return m.b.op(OpKind::rmsnorm, attrs, {stream.residual, weight}, prefix,
                  {name, name + ".stats"})[0];
  const std::vector<TensorId> out =
      m.b.op(OpKind::rmsnorm, attrs, {stream.residual, stream.delta, weight}, prefix,
             {sum, name, name + ".stats"});
  m.b.graph.tensors[out[0]].anchor = anchor;
  stream = {out[0], kNone};
  return out[1];
}

TensorId linear(ModelBuilder& m, TensorId x, int64_t inputs, int64_t outputs,
                const std::string& prefix, const std::string& parameter, const std::string& name,
                double std) {
  const TensorId weight = m.matrix(prefix + parameter + ".weight", outputs, inputs, std);
  return m.matmul(x, weight, kNone, prefix, name);
}

// Packed q, k, v of this block, rotated. Without norms of q and k the rotation is in place.
TensorId rotated_qkv(ModelBuilder& m, TensorId x, const std::string& prefix) {
  const ModelConfig& c = m.model;
  const TensorId weight = m.matrix(prefix + "qkv.weight", m.qkv_width(), c.hidden, c.init_std);
  const TensorId bias =
      c.qkv_bias ? m.vector(prefix + "qkv.bias", m.qkv_width(), Init::zeros) : kNone;
  const TensorId linear = m.matmul(x, weight, bias, prefix, c.qk_norm ? "qkv_lin" : "qkv.linear");
  Attrs attrs = m.attrs;
  attrs.qk_norm = c.qk_norm;
  attrs.rope_theta = c.rope.theta;
  attrs.llama3_rope = c.rope.llama3_scaling;
  attrs.rope_factor = c.rope.factor;
  attrs.rope_low = c.rope.low_freq_factor;
  attrs.rope_high = c.rope.high_freq_factor;
  attrs.rope_original = c.rope.original_context;
  std::vector<TensorId> in = {linear};
  if (c.qk_norm) {
    in.push_back(m.vector(prefix + "q_norm.weight", c.head_dim, Init::ones));
    in.push_back(m.vector(prefix + "k_norm.weight", c.head_dim, Init::ones));
  }
  if (m.decoding()) in.push_back(m.scalars);
  return m.b.op(OpKind::rope, attrs, in, prefix, {"qkv"}, !c.qk_norm)[0];
}

void block(ModelBuilder& m, Stream& stream, const std::string& prefix) {
  const ModelConfig& c = m.model;
  const TensorId attn_norm = norm(m, stream, prefix, "resid", "attn_norm", true);
  const TensorId qkv = rotated_qkv(m, attn_norm, prefix);
  const TensorId attn_out = m.attention(qkv, prefix);
  stream.delta = linear(m, attn_out, c.heads * c.head_dim, c.hidden, prefix, "proj", "attn_proj",
                        m.residual_std());

  const TensorId ffn_norm = norm(m, stream, prefix, "ffn_resid", "ffn_norm", false);
  // Rows of the gate, then rows of the up projection.
  const TensorId gate_up =
      linear(m, ffn_norm, c.hidden, 2 * c.ffn, prefix, "up", "ffn_up", c.init_std);
  const TensorId act = m.b.op(OpKind::swiglu, m.attrs, {gate_up}, prefix, {"ffn_act"})[0];
  stream.delta = linear(m, act, c.ffn, c.hidden, prefix, "down", "ffn_down", m.residual_std());
}

}  // namespace

Graph build_llama(ModelBuilder m) {
  const ModelConfig& c = m.model;
  m.b.layer = 0;
  const TensorId embed = m.table("embed.weight");
  Stream stream;
  std::vector<TensorId> in = {embed, m.tokens};
  if (m.decoding()) in.push_back(m.scalars);
  stream.residual = m.b.op(OpKind::embedding, m.attrs, in, "blk.0.", {"resid"})[0];
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
