// head_loss: the output projection and the cross entropy of its softmax, fused so that no more than
// attrs.chunk rows of logits exist at a time.
//   in   x[T,h], w[V,h] of x's dtype, targets i32[T] (0 … vocab−1, or −1: ignored)
//   out  losses f64[M]: losses[args.micro] = loss_scale · Σ_t nll_t; the others are untouched
//   logits = x·wᵀ in f32; columns ≥ attrs.vocab are padding and count as −∞.
//   The sum runs over rows in order.
//
// head_loss_grad: the same, with the gradients, in one pass.
//   in   as above
//   out  dx[T,h], dw f32[V,h] acc, losses f64[M]
//   dlogits = loss_scale·(softmax − onehot), zero on ignored rows and padding columns, rounded to
//   x's dtype before the two products. Chunks add to dw in ascending order.
//
// Attributes: vocab, chunk, loss_scale, micro_batches (M).
#pragma once

#include "graph/op.h"

namespace spillway {

extern const OpDef head_loss_def;
extern const OpDef head_loss_grad_def;

}  // namespace spillway
