#include "graph/ops/attention.h"

#include <algorithm>

#include "graph/backward_rules.h"
#include "graph/ops/attention_workspace.h"
#include "graph/ops/shapes.h"

namespace spillway {
namespace {

int64_t row_elements(const Attrs& a) {
  return (int64_t{a.heads} + 2 * int64_t{a.kv_heads}) * a.head_dim;
}
int64_t q_elements(const Attrs& a) { return int64_t{a.heads} * a.head_dim; }
int64_t kv_elements(const Attrs& a) { return int64_t{a.kv_heads} * a.head_dim; }

void expect_qkv(const Attrs& a, const std::vector<TensorType>& in, const char* op) {
  expect(a.kv_heads > 0 && a.heads % a.kv_heads == 0, op, in, "kv_heads do not divide heads");
  expect(is_compute(in[0].dtype) && in[0].dims.rank == 2 && in[0].dims[1] == row_elements(a), op,
         in, "qkv is not [T,(H+2K)·d]");
}

std::vector<TensorType> infer(const Attrs& attrs, const std::vector<TensorType>& in) {
  expect(in.size() == 1, "attention", in, "wrong number of operands");
  expect_qkv(attrs, in, "attention");
  expect(in[0].dims[0] == int64_t{attrs.batch} * attrs.context, "attention", in,
         "T is not batch·context");
  return {{in[0].dtype, Dims(in[0].dims[0], q_elements(attrs))},
          f32_of(Dims(int64_t{attrs.batch} * attrs.heads, attrs.context))};
}

std::vector<TensorType> cached_infer(const Attrs& attrs, const std::vector<TensorType>& in) {
  expect(in.size() == 4, "attention_cached", in, "wrong number of operands");
  expect_qkv(attrs, in, "attention_cached");
  for (int i : {1, 2})
    expect(
        in[i].dtype == in[0].dtype && in[i].dims.rank == 2 && in[i].dims[1] == kv_elements(attrs),
        "attention_cached", in, "a cache is not [C,K·d]");
  expect(in[3].dims.count() == int64_t{sizeof(StepScalars)}, "attention_cached", in, "no scalars");
  return {{in[0].dtype, Dims(in[0].dims[0], q_elements(attrs))}, in[1], in[2]};
}

// FLOPs of one product over the causal half of the scores.
double product_flops(const Attrs& a) {
  return static_cast<double>(a.batch) * a.context * (a.context + 1.0) *
         static_cast<double>(q_elements(a));
}

Cost cost(const Attrs& attrs, const std::vector<TensorType>& in) {
  const int64_t o_bytes = in[0].dims[0] * q_elements(attrs) * size_of(in[0].dtype);
  return {.flops = 2 * product_flops(attrs),
          .bytes = static_cast<double>(bytes_of(in) + o_bytes),
          .gemm = true,
          .attention = true};
}

Cost grad_cost(const Attrs& attrs, const std::vector<TensorType>& in) {
  return {.flops = 5 * product_flops(attrs),
          .bytes = static_cast<double>(bytes_of(in) + bytes_of(in[0])),
          .gemm = true,
          .attention = true,
          .backward = true};
}

// As if the cache were full: an upper bound.
Cost cached_cost(const Attrs& attrs, const std::vector<TensorType>& in) {
  const double scores = static_cast<double>(in[0].dims[0] * in[1].dims[0]);
  return {.flops = 4 * scores * static_cast<double>(q_elements(attrs)),
          .bytes = static_cast<double>(bytes_of(in)),
          .gemm = true,
          .attention = true};
}

int64_t workspace(const Attrs& attrs, const std::vector<TensorType>& in,
                  const WorkspaceRules& rules) {
  return attention_workspace(attrs, in[0].dtype, rules.threads, false);
}

int64_t grad_workspace(const Attrs& attrs, const std::vector<TensorType>& in,
                       const WorkspaceRules& rules) {
  // The CUDA kernels keep Σ do·o of every row and head.
  const int64_t cuda = rules.cuda ? round_up(in[0].dims[0] * attrs.heads * 4, 256) : 0;
  return std::max(attention_workspace(attrs, in[0].dtype, rules.threads, true), cuda);
}

// One row of scores and one of outputs a thread.
int64_t cached_workspace(const Attrs& attrs, const std::vector<TensorType>& in,
                         const WorkspaceRules& rules) {
  return rules.threads * (aligned(in[1].dims[0] * 4) + aligned(int64_t{attrs.head_dim} * 4));
}

struct Shape {
  int32_t batch, context, heads, kv_heads, head_dim;
};

constexpr Shape kShapes[] = {{1, 1, 1, 1, 2},    {2, 5, 3, 1, 6},    {1, 7, 2, 2, 3},
                             {1, 17, 4, 2, 16},  {2, 63, 2, 1, 64},  {1, 64, 4, 2, 64},
                             {1, 65, 3, 3, 16},  {1, 129, 2, 1, 64}, {1, 129, 2, 2, 128},
                             {2, 33, 6, 2, 128}, {1, 1, 9, 3, 128},  {3, 17, 1, 1, 64},
                             {1, 65, 5, 5, 64},  {1, 63, 3, 1, 128}, {1, 197, 2, 1, 64}};

OpCase base_case(const Shape& s) {
  OpCase c;
  c.label = "B" + std::to_string(s.batch) + " C" + std::to_string(s.context) + " H" +
            std::to_string(s.heads) + " K" + std::to_string(s.kv_heads) + " d" +
            std::to_string(s.head_dim);
  c.attrs.batch = s.batch;
  c.attrs.context = s.context;
  c.attrs.heads = s.heads;
  c.attrs.kv_heads = s.kv_heads;
  c.attrs.head_dim = s.head_dim;
  c.bf16_tolerance = 1e-2;
  return c;
}

OpCase forward_case(Dtype t, const Shape& s) {
  OpCase c = base_case(s);
  const int64_t rows = int64_t{s.batch} * s.context;
  c.in = {{t, Dims(rows, row_elements(c.attrs))}};
  c.out = {{t, Dims(rows, q_elements(c.attrs))},
           f32_of(Dims(int64_t{s.batch} * s.heads, s.context))};
  return c;
}

OpCase grad_case(Dtype t, const Shape& s) {
  OpCase c = forward_case(t, s);
  c.in = {c.in[0], c.out[0], c.out[1], c.out[0]};
  c.out = {c.in[0]};
  return c;
}

OpCase cached_case(Dtype t, const Shape& s, int64_t rows) {
  OpCase c = base_case(s);
  c.label += " n" + std::to_string(rows);
  const TensorType cache = {t, Dims(s.context, kv_elements(c.attrs))};
  c.in = {{t, Dims(rows, row_elements(c.attrs))}, cache, cache, scalars_type()};
  c.out = {{t, Dims(rows, q_elements(c.attrs))}, cache, cache};
  c.in_place = {{1, 1}, {2, 2}};
  return c;
}

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (const Shape& s : kShapes) add_both(all, [&](Dtype t) { return forward_case(t, s); });
  return all;
}

std::vector<OpCase> grad_cases() {
  std::vector<OpCase> all;
  for (const Shape& s : kShapes) add_both(all, [&](Dtype t) { return grad_case(t, s); });
  return all;
}

std::vector<OpCase> cached_cases() {
  std::vector<OpCase> all;
  for (Shape s : kShapes) {
    s.batch = 1;
    for (int64_t rows : {int64_t{1}, int64_t{std::max(1, s.context / 2)}})
      add_both(all, [&](Dtype t) { return cached_case(t, s, rows); });
  }
  return all;
}

}  // namespace

const OpDef attention_def = {.name = "attention",
                             .infer = infer,
                             .cost = cost,
                             .workspace = workspace,
                             .backward = attention_backward,
                             .cases = cases};
const OpDef attention_grad_def = {.name = "attention_grad",
                                  .infer = nullptr,
                                  .cost = grad_cost,
                                  .workspace = grad_workspace,
                                  .backward = nullptr,
                                  .cases = grad_cases};
const OpDef attention_cached_def = {.name = "attention_cached",
                                    .infer = cached_infer,
                                    .cost = cached_cost,
                                    .workspace = cached_workspace,
                                    .backward = nullptr,
                                    .cases = cached_cases};

}  // namespace spillway
