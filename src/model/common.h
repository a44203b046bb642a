// What the model families share: inputs, the base attributes, attention with or without a KV cache,
// the head.
#pragma once

#include <cmath>
#include <string>

#include "config/config.h"
#include "graph/builder.h"
#include "model/model.h"

namespace spillway {

struct ModelBuilder {
  GraphBuilder b;
  const ModelConfig& model;
  const GraphShape& shape;
  GraphMode mode;
  Attrs attrs;  // base of every op's
  TensorId tokens = kNone, targets = kNone, scalars = kNone;

  ModelBuilder(const ModelConfig& model, Precision precision, int64_t loss_chunk,
               const GraphShape& shape, GraphMode mode);

  bool decoding() const { return mode != GraphMode::train; }
  int64_t qkv_width() const { return (model.heads + 2 * model.kv_heads) * model.head_dim; }
  double residual_std() const {
    return model.init_std / std::sqrt(2.0 * static_cast<double>(model.layers));
  }

  TensorId matrix(const std::string& name, int64_t rows, int64_t columns, double std);
  TensorId table(const std::string& name);  // [padded vocabulary, hidden]
  TensorId vector(const std::string& name, int64_t size, Init init);

  // y = a · weightᵀ (+ bias if it is not kNone); place and tensor are `name`.
  TensorId matmul(TensorId a, TensorId weight, TensorId bias, const std::string& prefix,
                  const std::string& name);
  // [rows, heads · head_dim] from packed q, k, v; reads and extends the block's KV cache if
  // decoding.
  TensorId attention(TensorId qkv, const std::string& prefix);
  // Loss, or logits of the last live row, from the normed activations.
  void head(TensorId normed, TensorId weight);
};

Graph build_gpt2(ModelBuilder m);
Graph build_llama(ModelBuilder m);

}  // namespace spillway
