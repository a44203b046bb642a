// norm_partials: sums of squares of the blocks of a gradient range.
//   in   grad f32[c]   out  partials f64[ceil(c / attrs.block)]
//   partials[i] covers elements i·block … of the range; squares and sums are f64.
//   Attributes: block.
//
// norm_finish: global norm, loss, clip scale and verdict of a step.
//   in   partials f64[P], losses f64[L], scalars   out  scalars (the same tensor, in place)
//   norm = sqrt(Σ partials in order), loss = Σ losses in order,
//   clip_scale = clip > 0 ? min(1, clip / (norm + 1e-6)) : 1,
//   skip_update = 1 if norm or loss is not finite, else 0. Other fields stay.
//   Attributes: clip.
#pragma once

#include "graph/op.h"

namespace spillway {

extern const OpDef norm_partials_def;
extern const OpDef norm_finish_def;

}  // namespace spillway
