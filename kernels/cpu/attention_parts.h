// What attention and attention_grad share: where heads stand in qkv, and each thread's workspace.
#pragma once

#include <cmath>
#include <cstdint>

#include "graph/kernel_abi.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/row_steps.h"

namespace spillway::cpu {

struct AttentionShape {
  Dtype dtype;
  int64_t size;  // bytes of an element
  int64_t batch, context, heads, kv_heads, d;
  int64_t group;   // query heads a KV head
  int64_t row;     // elements of a row of qkv
  int64_t padded;  // columns of a row of scores: off the powers of two, so that rows do not all
                   // compete for the same lines of a cache
  float scale;
  const GemmEngine* engine;
  const RowSteps* steps;
  const char* qkv;

  AttentionShape(const TensorArg& packed, const Attrs& a)
      : dtype(packed.dtype),
        size(size_of(packed.dtype)),
        batch(a.batch),
        context(a.context),
        heads(a.heads),
        kv_heads(a.kv_heads),
        d(a.head_dim),
        group(heads / kv_heads),
        row((heads + 2 * kv_heads) * d),
        padded(round_up(context, 32) + 32),
        scale(1.0f / std::sqrt(static_cast<float>(d))),
        engine(&gemm_engine(dtype, isa())),
        steps(isa() == Isa::avx2 ? &avx2::kRowSteps : &avx512::kRowSteps),
        qkv(packed.as<char>()) {}

  // Offsets in bytes into qkv (and dqkv) of row 0 of a head of a sequence.
  int64_t query_at(int64_t sequence, int64_t head) const {
    return (sequence * context * row + head * d) * size;
  }
  int64_t key_at(int64_t sequence, int64_t kv) const { return query_at(sequence, heads + kv); }
  int64_t value_at(int64_t sequence, int64_t kv) const {
    return query_at(sequence, heads + kv_heads + kv);
  }
  const char* query(int64_t sequence, int64_t head) const { return qkv + query_at(sequence, head); }
  const char* key(int64_t sequence, int64_t kv) const { return qkv + key_at(sequence, kv); }
  const char* value(int64_t sequence, int64_t kv) const { return qkv + value_at(sequence, kv); }
};

// A kernel's workspace in equal parts, one a slot of for_tasks.
class Slots {
 public:
  Slots(const char* op, const KernelArgs& args, int64_t count)
      : op_(op),
        data_(static_cast<char*>(args.workspace)),
        bytes_(args.workspace_bytes / std::max<int64_t>(1, count) / 64 * 64) {}
  Scratch scratch(int64_t slot) const { return Scratch(op_, data_ + slot * bytes_, bytes_); }

 private:
  const char* op_;
  char* data_;
  int64_t bytes_;
};

}  // namespace spillway::cpu
