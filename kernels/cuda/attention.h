// What attention and attention_grad share on the host.
#pragma once

#include "graph/kernel_abi.h"

namespace spillway::cuda {

// Rows of qkv[T,(H+2K)·d]: H query heads, then K key heads, then K value heads; a row of o and do
// holds H heads. T = sequences · context. Elements throughout.
struct AttentionShape {
  int32_t sequences, context, heads, kv_heads;
  int64_t pitch;    // of a row of qkv and dqkv
  int64_t o_pitch;  // of a row of o and do
  float scale;      // of scores: 1/√d
  bool aligned;     // the bases are multiples of 16 bytes (row pitches always are)
};

// Of attention or attention_grad. Throws Error(bad_input) for a head size other than 64 and 128.
AttentionShape attention_shape(const KernelArgs& args);

}  // namespace spillway::cuda
