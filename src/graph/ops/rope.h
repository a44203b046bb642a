// rope: rotary positions on the q and k heads of a packed qkv row, in the half-rotation convention:
// with d = attrs.head_dim, element i < d/2 of a head pairs with element i + d/2,
//   out[i]       = x[i]·cos(p·f_i) − x[i + d/2]·sin(p·f_i)
//   out[i + d/2] = x[i + d/2]·cos(p·f_i) + x[i]·sin(p·f_i),   f_i = rope_frequency(attrs, i).
//   in   qkv[T,(H+2K)·d] (H q heads, then K k heads, then K v heads), (qw f32[d], kw f32[d] if
//        attrs.qk_norm), (scalars if attrs.decode)
//   out  qkv'[T,(H+2K)·d]; without qk_norm it may take over the bytes of qkv
//   p = r % attrs.context, or scalars.position + r when decoding. With qk_norm each q (k) head is
//   first RMS-normed with attrs.eps and multiplied by qw (kw). v heads are copied.
//
// rope_grad:
//   in   dqkv'[T,(H+2K)·d], (qkv[T,(H+2K)·d] before rotation, qw, kw if attrs.qk_norm)
//   out  dqkv[T,(H+2K)·d] (may take over the bytes of dqkv'), (dqw, dkw f32[d] acc if qk_norm)
//
// Attributes: context, heads, kv_heads, head_dim, qk_norm, eps, decode, rope_theta, llama3_rope,
// rope_factor, rope_low, rope_high, rope_original.
#pragma once

#include "graph/op.h"

namespace spillway {

extern const OpDef rope_def;
extern const OpDef rope_grad_def;

}  // namespace spillway
