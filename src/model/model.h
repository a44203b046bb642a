// Model families: forward graphs of one micro-batch, about a hundred lines each.
#pragma once

#include <cstdint>

#include "config/config.h"
#include "graph/graph.h"

namespace spillway {

enum class GraphMode : uint8_t { train, prefill, decode };

struct GraphShape {
  int64_t batch = 1;          // sequences of a micro-batch (decoding: 1)
  int64_t tokens = 0;         // tokens a sequence: context, or tokens of one prefill / decode call
  int64_t micro_batches = 1;  // a step on this rank: size of `losses`
  int64_t loss_tokens = 1;    // tokens of the global batch: the loss is a mean over them
};

// Forward graph. Inputs: tokens, targets, token_order (train); tokens, scalars, kv caches (decode).
// train ends in head_loss → "losses"; prefill and decode end in "logits" f32[1, padded vocab].
Graph build_model(const ModelConfig& model, Precision precision, int64_t loss_chunk,
                  const GraphShape& shape, GraphMode mode);

// Tokens whose logits are alive at once when the config leaves it to us: about 64 MiB of f32
// logits, at least 128 tokens, and a divisor of nothing in particular (the last chunk is shorter).
int64_t default_loss_chunk(int64_t padded_vocab, int64_t tokens);

int64_t parameter_count(const ModelConfig& model);  // live elements, tied head counted once
double model_flops_per_token(
    const ModelConfig& model);  // 6 N + 12 L C h_attention, forward + backward

}  // namespace spillway
