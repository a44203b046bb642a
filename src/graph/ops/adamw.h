// adamw: one update of a range of a parameter by AdamW with decoupled decay.
//   in   grad f32[c], scalars, state f32[c], m f32[c], v f32[c], (param bf16[c], where a program
//        must know that a skipped update leaves it as it was)
//   out  state, m, v (the same tensors, in place), (param bf16[c]: state rounded to nearest even)
//   g = grad·clip_scale
//   m = β1·m + (1−β1)·g,  v = β2·v + (1−β2)·g²
//   state −= lr·(weight_decay·state + (m / beta1_correction) / (sqrt(v / beta2_correction) + eps))
//   In f32 with explicit fused multiply-adds, IEEE division and square root, so that every backend
//   gives the same bits. If scalars.skip_update, nothing at all is written.
// Attributes: beta1, beta2, eps, weight_decay.
#pragma once

#include "graph/op.h"

namespace spillway {

extern const OpDef adamw_def;

}  // namespace spillway
