// matmul: y = a·wᵀ (+ bias).
//   in   a[T,k], w[n,k] of a's dtype, (bias f32[n] if attrs.bias)
//   out  y[T,n] of a's dtype, or f32 if attrs.f32_out (logits)
//
// matmul_dinput:   in dy[T,n], w[n,k]   out dx[T,k] = dy·w
// matmul_dweight:  in dy[T,n], a[T,k]   out dw f32[n,k] acc = dyᵀ·a
// bias_grad:       in dy[T,n]           out db f32[n] acc = sums over rows, by a fixed tree
//
// Products of bf16 are accumulated in f32. Attributes: bias, f32_out.
#pragma once

#include "graph/op.h"

namespace spillway {

extern const OpDef matmul_def;
extern const OpDef matmul_dinput_def;
extern const OpDef matmul_dweight_def;
extern const OpDef bias_grad_def;

}  // namespace spillway
