// layernorm: y = (x − mean) · rstd · w + b of each row, rstd = 1/sqrt(variance + eps), the variance
// being the mean of squared deviations; with attrs.residual the sum x + delta takes the place of x
// and is given out as well.
//   in   x[T,h], (delta[T,h] if attrs.residual), w f32[h], b f32[h]
//   out  (resid[T,h] if attrs.residual), y[T,h], stats f32[T,2] (mean, rstd)
//   resid = x + delta is rounded to its dtype first and y computed from the rounded sum, so that a
//   recompute from resid alone gives the same bits. resid may take over the bytes of x or delta.
//   An output without data is not wanted (in a recompute) and not written.
//
// layernorm_grad:
//   in   resid[T,h], stats f32[T,2], w f32[h], dy[T,h], (dresid[T,h] if attrs.residual)
//   out  dx[T,h] (+ dresid; may take over its bytes), dw f32[h] acc, db f32[h] acc
//   With x̂ = (resid − mean)·rstd and g = dy·w: dx = rstd·(g − mean(g) − x̂·mean(g·x̂)).
//
// Attributes: residual, eps.
#pragma once

#include "graph/op.h"

namespace spillway {

extern const OpDef layernorm_def;
extern const OpDef layernorm_grad_def;

}  // namespace spillway
