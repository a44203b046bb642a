// attention: causal self-attention over packed qkv rows, scale 1/sqrt(d), grouped KV heads.
//   in   qkv[T,(H+2K)·d], T = batch·context; q head i reads kv head i / (H/K)
//   out  o[T,H·d], lse f32[batch·H, context] (natural log of the sum of exponentials of the scaled
//        scores of a row)
//
// attention_grad:
//   in   qkv[T,(H+2K)·d], o[T,H·d], lse f32[batch·H, context], do[T,H·d]
//   out  dqkv[T,(H+2K)·d]
//
// attention_cached: attention of n new tokens of one sequence over a cache of all before.
//   in   qkv[n,(H+2K)·d], k_cache[C,K·d], v_cache[C,K·d], scalars
//   out  o[n,H·d], k_cache, v_cache (the same tensors, in place)
//   Writes rows position … position+count−1 of the caches from rows 0 … count−1 of qkv; row r
//   attends to cache rows ≤ position + r. Rows ≥ count of o are zero.
//   position + count ≤ C and count ≤ n are the caller's duty.
//
// Attributes: batch, context, heads, kv_heads, head_dim. One dtype throughout, lse f32.
#pragma once

#include "graph/op.h"

namespace spillway {

extern const OpDef attention_def;
extern const OpDef attention_grad_def;
extern const OpDef attention_cached_def;

}  // namespace spillway
