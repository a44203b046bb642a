// attention_grad. A task is one KV head of one sequence, so that dk and dv of its query heads are
// added in ascending order. Blocks of query rows × keys: scores are made again from q, k and lse.
#include "kernels/cpu/attention_parts.h"
#include "kernels/cpu/table.h"

namespace spillway::cpu {
namespace {

constexpr int64_t kKeyBlock = 512;

struct Backward {
  int64_t stride;                       // of a row of scores
  void *keys_t, *values_t, *keys;       // packed as B: kᵀ, vᵀ, k
  void *q_rows, *do_rows, *q_b, *do_b;  // a block's q and do, packed as A and as B
  void *p, *ds, *packed;                // rounded; `packed` as A, by turns
  float *s, *dp, *dq, *dk, *dv, *dots;

  Backward(const AttentionShape& shape, int64_t block, Scratch scratch) {
    const GemmEngine& e = *shape.engine;
    const int64_t c = shape.context, d = shape.d, columns = std::min(kKeyBlock, c);
    stride = round_up(columns, 32) + 32;
    keys_t = scratch.take(packed_b_bytes(e, d, c));
    values_t = scratch.take(packed_b_bytes(e, d, c));
    keys = scratch.take(packed_b_bytes(e, c, d));
    q_rows = scratch.take(packed_a_bytes(e, block, d));
    do_rows = scratch.take(packed_a_bytes(e, block, d));
    q_b = scratch.take(packed_b_bytes(e, block, d));
    do_b = scratch.take(packed_b_bytes(e, block, d));
    s = scratch.take_array<float>(block * stride);
    dp = scratch.take_array<float>(block * stride);
    const bool narrow = shape.dtype != Dtype::f32;
    p = narrow ? scratch.take(block * stride * shape.size) : s;
    ds = narrow ? scratch.take(block * stride * shape.size) : dp;
    packed = scratch.take(
        std::max(packed_a_bytes(e, columns, block), packed_a_bytes(e, block, columns)));
    dq = scratch.take_array<float>(block * d);
    dk = scratch.take_array<float>(c * d);
    dv = scratch.take_array<float>(c * d);
    dots = scratch.take_array<float>(block);
  }
};

class HeadGrad {
 public:
  HeadGrad(const AttentionShape& shape, const KernelArgs& args, int64_t block, const Backward& w,
           int64_t sequence, int64_t kv)
      : s_(shape),
        e_(*shape.engine),
        args_(args),
        block_(block),
        w_(w),
        sequence_(sequence),
        kv_(kv) {}

  void run() const {
    e_.pack_b(s_.key(sequence_, kv_), 1, s_.row, s_.d, s_.context, w_.keys_t, narrow_panel());
    e_.pack_b(s_.value(sequence_, kv_), 1, s_.row, s_.d, s_.context, w_.values_t, narrow_panel());
    e_.pack_b(s_.key(sequence_, kv_), s_.row, 1, s_.context, s_.d, w_.keys, long_panel());
    std::fill_n(w_.dk, s_.context * s_.d, 0.0f);
    std::fill_n(w_.dv, s_.context * s_.d, 0.0f);
    for (int64_t head = kv_ * s_.group; head < (kv_ + 1) * s_.group; ++head)
      for (int64_t i = 0; i < s_.context; i += block_) query_block(head, i);
    char* out = args_.out[0].as<char>();
    s_.steps->divide(s_.context, s_.d, w_.dk, s_.d, nullptr, out + s_.key_at(sequence_, kv_),
                     s_.dtype, s_.row);
    s_.steps->divide(s_.context, s_.d, w_.dv, s_.d, nullptr, out + s_.value_at(sequence_, kv_),
                     s_.dtype, s_.row);
  }

 private:
  int64_t narrow_panel() const { return panel_bytes(e_, s_.d); }
  int64_t long_panel() const { return panel_bytes(e_, s_.context); }

  void query_block(int64_t head, int64_t i) const {
    const int64_t rows = std::min(block_, s_.context - i), o_row = s_.heads * s_.d;
    const int64_t o_at = ((sequence_ * s_.context + i) * s_.heads + head) * s_.d * s_.size;
    const char* q = s_.query(sequence_, head) + i * s_.row * s_.size;
    const char* d_out = args_.in[3].as<char>() + o_at;
    const float* lse = args_.in[2].as<float>() + (sequence_ * s_.heads + head) * s_.context + i;
    const int64_t row_panel = panel_bytes(e_, rows);
    s_.steps->row_dots(rows, s_.d, s_.dtype, args_.in[1].as<char>() + o_at, o_row, d_out, o_row,
                       w_.dots);
    e_.pack_a(q, s_.row, 1, rows, s_.d, w_.q_rows);
    e_.pack_a(d_out, o_row, 1, rows, s_.d, w_.do_rows);
    e_.pack_b(q, s_.row, 1, rows, s_.d, w_.q_b, row_panel);
    e_.pack_b(d_out, o_row, 1, rows, s_.d, w_.do_b, row_panel);
    for (int64_t j = 0; j < i + rows; j += kKeyBlock) {
      const int64_t columns = std::min(kKeyBlock, i + rows - j);
      key_block(rows, i, j, columns, lse, row_panel);
    }
    s_.steps->divide(rows, s_.d, w_.dq, s_.d, nullptr,
                     args_.out[0].as<char>() + s_.query_at(sequence_, head) + i * s_.row * s_.size,
                     s_.dtype, s_.row);
  }

  void key_block(int64_t rows, int64_t i, int64_t j, int64_t columns, const float* lse,
                 int64_t row_panel) const {
    const auto* keys_t = static_cast<const char*>(w_.keys_t) + j / e_.columns * narrow_panel();
    const auto* values_t = static_cast<const char*>(w_.values_t) + j / e_.columns * narrow_panel();
    e_.multiply(rows, columns, s_.d, w_.q_rows, keys_t, narrow_panel(), w_.s, w_.stride, false);
    e_.multiply(rows, columns, s_.d, w_.do_rows, values_t, narrow_panel(), w_.dp, w_.stride, false);
    s_.steps->softmax_grad(rows, columns, i + 1 - j, s_.scale, w_.s, w_.dp, w_.stride, lse, w_.dots,
                           w_.p, w_.ds, s_.dtype, w_.stride);
    add_over_rows(w_.p, rows, columns, w_.do_b, row_panel, w_.dv + j * s_.d);
    add_over_rows(w_.ds, rows, columns, w_.q_b, row_panel, w_.dk + j * s_.d);
    e_.pack_a(w_.ds, w_.stride, 1, rows, columns, w_.packed);
    e_.multiply(rows, s_.d, columns, w_.packed,
                static_cast<const char*>(w_.keys) + j * e_.columns * e_.b_bytes, long_panel(),
                w_.dq, s_.d, j > 0);
  }

  // sums += xᵀ·b
  void add_over_rows(const void* x, int64_t rows, int64_t columns, const void* b, int64_t panel,
                     float* sums) const {
    e_.pack_a(x, 1, w_.stride, columns, rows, w_.packed);
    e_.multiply(columns, s_.d, rows, w_.packed, b, panel, sums, s_.d, true);
  }

  const AttentionShape& s_;
  const GemmEngine& e_;
  const KernelArgs& args_;
  const int64_t block_;
  const Backward& w_;
  const int64_t sequence_, kv_;
};

}  // namespace

void attention_grad(const KernelArgs& args) {
  const AttentionShape s(args.in[0], *args.attrs);
  const int64_t block = round_up(64, s.engine->rows), tasks = s.batch * s.kv_heads;
  const Slots slots("attention_grad", args, std::min<int64_t>(tasks, threads()));
  (void)Backward(s, block, slots.scratch(0));  // throws here, not in a task, if it does not fit
  for_tasks(tasks, [&](int64_t task, int64_t slot) {
    const Backward w(s, block, slots.scratch(slot));
    HeadGrad(s, args, block, w, task / s.kv_heads, task % s.kv_heads).run();
  });
}

}  // namespace spillway::cpu
