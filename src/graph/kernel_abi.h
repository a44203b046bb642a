// The one argument block that every kernel of every backend receives. No CUDA, no oneDNN, no std
// containers: variant files of kernels/cpu and device code include it.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace spillway {

enum class OpKind : uint8_t {
#define OP(name) name,
#include "graph/op_list.h"
  count_
};
constexpr int kOpCount = static_cast<int>(OpKind::count_);

// The only values that change from step to step. One block on the host, one on the device, copied
// at the start of a step (host → device) and at its end (device → host).
struct StepScalars {
  uint64_t step = 0, seed = 0;  // step counts from 1 for the first update
  float lr = 0, beta1_correction = 1, beta2_correction = 1;  // 1 - beta^t, t = updates applied + 1
  float clip_scale = 1;                                      // written by norm_finish
  uint32_t skip_update = 0;  // written by norm_finish: 1 if not finite
  int32_t position = 0;      // decoding: tokens already in the KV cache
  int32_t count = 0;         // decoding: live tokens of this call
  uint32_t reserved = 0;
  double loss = 0, norm = 0;  // written by norm_finish
};

// Everything static about one op instance. An op reads only the fields its header names; numerics
// live here.
struct Attrs {
  int32_t batch = 0, context = 0;  // sequences and tokens a sequence of one micro-batch
  int32_t heads = 0, kv_heads = 0, head_dim = 0;
  int32_t vocab = 0;                       // live vocabulary; columns beyond it are padding
  int32_t chunk = 0;                       // head_loss: tokens whose logits are alive at once
  int32_t ranks = 1, rank = 0, inner = 1;  // rank_sum: group, own place, width of the inner tree
  int32_t block = 0;                       // norm_partials: elements a block
  int32_t micro_batches = 1;               // head_loss: elements of `losses`
  bool residual = false, bias = false, qk_norm = false, decode = false, llama3_rope = false;
  bool f32_out = false;  // matmul: y is f32 whatever the inputs are (logits)
  float eps = 0;
  float loss_scale = 1;  // 1 / tokens of the global batch
  double rope_theta = 10000, rope_factor = 8, rope_low = 1, rope_high = 4;
  int64_t rope_original = 8192;
  float beta1 = 0.9f, beta2 = 0.95f, weight_decay = 0, clip = 0;
};

struct TensorArg {
  void* data = nullptr;
  Dtype dtype = Dtype::f32;
  Dims dims;
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

constexpr int kMaxOperands = 10;

struct KernelArgs {
  TensorArg in[kMaxOperands], out[kMaxOperands];
  int32_t in_count = 0, out_count = 0;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  const Attrs* attrs = nullptr;
  bool accumulate = false;  // outputs marked accumulating add to what is there; else they overwrite
  int32_t micro = 0;        // micro-batch of this step, ascending
};

using Kernel = void (*)(const KernelArgs&);

}  // namespace spillway
