#include "model/model.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "model/common.h"

namespace spillway {

ModelBuilder::ModelBuilder(const ModelConfig& model_config, Precision precision, int64_t loss_chunk,
                           const GraphShape& graph_shape, GraphMode graph_mode)
    : model(model_config), shape(graph_shape), mode(graph_mode) {
  b.compute = precision == Precision::bf16 ? Dtype::bf16 : Dtype::f32;
  b.graph.layers = static_cast<int32_t>(model.layers);
  const int64_t rows = shape.batch * shape.tokens;
  attrs.batch = static_cast<int32_t>(shape.batch);
  attrs.context = static_cast<int32_t>(decoding() ? model.context : shape.tokens);
  attrs.heads = static_cast<int32_t>(model.heads);
  attrs.kv_heads = static_cast<int32_t>(model.kv_heads);
  attrs.head_dim = static_cast<int32_t>(model.head_dim);
  attrs.vocab = static_cast<int32_t>(model.vocab);
  attrs.chunk = static_cast<int32_t>(
      loss_chunk > 0 ? std::min(loss_chunk, rows) : default_loss_chunk(model.padded_vocab(), rows));
  attrs.decode = decoding();
  attrs.eps = static_cast<float>(model.norm_eps);
  attrs.loss_scale = static_cast<float>(1.0 / static_cast<double>(shape.loss_tokens));
  tokens = b.input("tokens", Dtype::i32, Dims(rows));
  if (decoding()) {
    scalars = b.input("scalars", Dtype::u8, Dims(sizeof(StepScalars)));
    b.graph.tensors[scalars].role = Role::scalar;
  } else {
    targets = b.input("targets", Dtype::i32, Dims(rows));
    b.input("token_order", Dtype::i32, Dims(rows));
  }
}

TensorId ModelBuilder::matrix(const std::string& name, int64_t rows, int64_t columns, double std) {
  return b.param(name, Dims(rows, columns), Dims(rows, columns), true, Init::normal, std);
}

TensorId ModelBuilder::table(const std::string& name) {
  return b.param(name, Dims(model.padded_vocab(), model.hidden), Dims(model.vocab, model.hidden),
                 true, Init::normal, model.init_std);
}

TensorId ModelBuilder::vector(const std::string& name, int64_t size, Init init) {
  return b.param(name, Dims(size), Dims(size), false, init, 0);
}

TensorId ModelBuilder::matmul(TensorId a, TensorId weight, TensorId bias, const std::string& prefix,
                              const std::string& name) {
  Attrs own = attrs;
  own.bias = bias != kNone;
  std::vector<TensorId> in = {a, weight};
  if (own.bias) in.push_back(bias);
  return b.op(OpKind::matmul, own, in, prefix, {name})[0];
}

TensorId ModelBuilder::attention(TensorId qkv, const std::string& prefix) {
  if (!decoding())
    return b.op(OpKind::attention, attrs, {qkv}, prefix, {"attn_out", "attn_out.lse"})[0];
  Node node;
  node.name = prefix + "attn_out.forward";
  node.op = OpKind::attention_cached;
  node.attrs = attrs;
  node.layer = b.layer;
  node.in.push_back({qkv});
  Tensor out;
  out.name = prefix + "attn_out";
  out.place = "attn_out";
  out.dtype = b.compute;
  out.dims = Dims(shape.tokens, model.heads * model.head_dim);
  out.layer = b.layer;
  const TensorId result = b.graph.add(std::move(out));
  node.out.push_back({result});
  for (const char* name : {"k_cache", "v_cache"}) {
    Tensor cache;
    cache.name = prefix + name;
    cache.place = "kv_cache";
    cache.dtype = b.compute;
    cache.dims = Dims(model.context, model.kv_heads * model.head_dim);
    cache.role = Role::kv_cache;
    cache.layer = b.layer;
    const TensorId id = b.graph.add(std::move(cache));
    node.in.push_back({id});
    node.out.push_back({id});
  }
  node.in.push_back({scalars});
  b.graph.nodes.push_back(std::move(node));
  return result;
}

void ModelBuilder::head(TensorId normed, TensorId weight) {
  if (decoding()) {
    const TensorId last =
        b.op(OpKind::select_row, attrs, {normed, scalars}, "", {"last_normed"})[0];
    Attrs own = attrs;
    own.f32_out = true;
    b.op(OpKind::matmul, own, {last, weight}, "", {"logits"});
    return;
  }
  Node node;
  node.name = "losses.forward";
  node.op = OpKind::head_loss;
  node.attrs = attrs;
  node.layer = b.layer;
  for (TensorId id : {normed, weight, targets}) node.in.push_back({id});
  Tensor losses;
  losses.name = losses.place = "losses";
  losses.dtype = Dtype::f64;
  losses.dims = Dims(shape.micro_batches);
  losses.role = Role::scalar;
  losses.layer = b.layer;
  node.out.push_back({b.graph.add(std::move(losses))});
  b.graph.nodes.push_back(std::move(node));
}

Graph build_model(const ModelConfig& model, Precision precision, int64_t loss_chunk,
                  const GraphShape& shape, GraphMode mode) {
  if (shape.batch < 1 || shape.tokens < 1 || shape.tokens > model.context)
    internal_error("{} sequences of {} tokens do not fit a context of {}", shape.batch,
                   shape.tokens, model.context);
  ModelBuilder m(model, precision, loss_chunk, shape, mode);
  switch (model.family) {
    case Family::gpt2:
      return build_gpt2(std::move(m));
    case Family::llama:
      return build_llama(std::move(m));
  }
  internal_error("unknown model family");
}

int64_t default_loss_chunk(int64_t padded_vocab, int64_t tokens) {
  constexpr int64_t kLogitsBytes = int64_t{64} << 20;
  const int64_t chunk = std::max<int64_t>(128, kLogitsBytes / (padded_vocab * 4));
  return std::min(chunk, tokens);
}

int64_t parameter_count(const ModelConfig& model) {
  GraphShape shape;
  shape.tokens = 1;
  const Graph graph = build_model(model, Precision::f32, 0, shape, GraphMode::train);
  int64_t count = 0;
  for (const Param& param : graph.params) count += param.live.count();
  return count;
}

double model_flops_per_token(const ModelConfig& model) {
  const double attention = 12.0 * static_cast<double>(model.layers) *
                           static_cast<double>(model.context) *
                           static_cast<double>(model.heads * model.head_dim);
  return 6.0 * static_cast<double>(parameter_count(model)) + attention;
}

}  // namespace spillway
