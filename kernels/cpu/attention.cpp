// attention and attention_cached. A task is one KV head of one sequence: its keys and values are
// packed once, then blocks of query rows meet the keys they may see.
#include <cstring>
#include <utility>

#include "kernels/cpu/attention_parts.h"
#include "kernels/cpu/table.h"

namespace spillway::cpu {
namespace {

struct Forward {
  void *keys, *values, *q, *p, *packed_p;
  float *scores, *sums, *row_sums;

  Forward(const AttentionShape& s, int64_t block, Scratch scratch) {
    const GemmEngine& e = *s.engine;
    keys = scratch.take(packed_b_bytes(e, s.d, s.context));
    values = scratch.take(packed_b_bytes(e, s.context, s.d));
    q = scratch.take(packed_a_bytes(e, block, s.d));
    scores = scratch.take_array<float>(block * s.padded);
    p = s.dtype == Dtype::f32 ? scores : scratch.take(block * s.padded * s.size);
    packed_p = scratch.take(packed_a_bytes(e, block, s.context));
    sums = scratch.take_array<float>(block * s.d);
    row_sums = scratch.take_array<float>(block);
  }
};

}  // namespace

void attention(const KernelArgs& args) {
  const AttentionShape s(args.in[0], *args.attrs);
  const GemmEngine& e = *s.engine;
  const int64_t block = round_up(32, e.rows), tasks = s.batch * s.kv_heads;
  const Slots slots("attention", args, std::min<int64_t>(tasks, threads()));
  (void)Forward(s, block, slots.scratch(0));  // throws here, not in a task, if it does not fit
  char* o = args.out[0].as<char>();
  float* lse = args.out[1].as<float>();

  for_tasks(tasks, [&](int64_t task, int64_t slot) {
    const int64_t sequence = task / s.kv_heads, kv = task % s.kv_heads;
    const Forward f(s, block, slots.scratch(slot));
    const int64_t key_panel = panel_bytes(e, s.d), value_panel = panel_bytes(e, s.context);
    e.pack_b(s.key(sequence, kv), 1, s.row, s.d, s.context, f.keys, key_panel);
    e.pack_b(s.value(sequence, kv), s.row, 1, s.context, s.d, f.values, value_panel);
    for (int64_t head = kv * s.group; head < (kv + 1) * s.group; ++head) {
      const char* q = s.query(sequence, head);
      char* out = o + (sequence * s.context * s.heads + head) * s.d * s.size;
      float* head_lse = lse + (sequence * s.heads + head) * s.context;
      for (int64_t i = 0; i < s.context; i += block) {
        const int64_t rows = std::min(block, s.context - i), seen = i + rows;
        e.pack_a(q + i * s.row * s.size, s.row, 1, rows, s.d, f.q);
        e.multiply(rows, seen, s.d, f.q, f.keys, key_panel, f.scores, s.padded, false);
        s.steps->softmax(rows, seen, i + 1, s.scale, f.scores, s.padded, f.p, s.dtype, s.padded,
                         f.row_sums, head_lse + i);
        e.pack_a(f.p, s.padded, 1, rows, seen, f.packed_p);
        e.multiply(rows, s.d, seen, f.packed_p, f.values, value_panel, f.sums, s.d, false);
        s.steps->divide(rows, s.d, f.sums, s.d, f.row_sums, out + i * s.heads * s.d * s.size,
                        s.dtype, s.heads * s.d);
      }
    }
  });
}

void attention_cached(const KernelArgs& args) {
  const TensorArg &qkv = args.in[0], &cache = args.out[1];
  const AttentionShape s(qkv, *args.attrs);
  const StepScalars& scalars = *args.in[3].as<StepScalars>();
  const int64_t rows = qkv.dims[0], count = std::min<int64_t>(scalars.count, rows);
  const int64_t width = s.kv_heads * s.d;
  char *keys = args.out[1].as<char>(), *values = args.out[2].as<char>();
  char* o = args.out[0].as<char>();
  for (int64_t r = 0; r < count; ++r) {
    const int64_t at = (scalars.position + r) * width * s.size;
    const char* from = qkv.as<char>() + (r * s.row + s.heads * s.d) * s.size;
    std::memcpy(keys + at, from, width * s.size);
    std::memcpy(values + at, from + width * s.size, width * s.size);
  }
  const int64_t row_bytes = s.heads * s.d * s.size;
  if (count < rows) std::memset(o + count * row_bytes, 0, (rows - count) * row_bytes);
  const Slots slots("attention_cached", args, std::min<int64_t>(count * s.heads, threads()));
  auto parts = [&](int64_t slot) {
    Scratch scratch = slots.scratch(slot);
    float* scores = scratch.take_array<float>(cache.dims[0]);
    return std::pair(scores, scratch.take_array<float>(s.d));
  };
  if (count > 0) parts(0);
  for_tasks(count * s.heads, [&](int64_t task, int64_t slot) {
    const int64_t r = task / s.heads, head = task % s.heads;
    const auto [scores, sums] = parts(slot);
    const int64_t kv = head / s.group * s.d * s.size, at = (r * s.heads + head) * s.d * s.size;
    s.steps->attend(qkv.as<char>() + (r * s.row + head * s.d) * s.size, keys + kv, values + kv,
                    s.dtype, width, scalars.position + r + 1, s.d, s.scale, scores, sums, o + at);
  });
}

}  // namespace spillway::cpu
