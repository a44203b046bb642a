#include "graph/ops/rope.h"

#include <algorithm>

#include "graph/backward_rules.h"
#include "graph/ops/row_blocks.h"
#include "graph/ops/shapes.h"

namespace spillway {
namespace {

int64_t row_elements(const Attrs& a) {
  return (int64_t{a.heads} + 2 * int64_t{a.kv_heads}) * a.head_dim;
}

std::vector<TensorType> infer(const Attrs& attrs, const std::vector<TensorType>& in) {
  const size_t operands = 1 + (attrs.qk_norm ? 2 : 0) + (attrs.decode ? 1 : 0);
  expect(in.size() == operands, "rope", in, "wrong number of operands");
  expect(is_compute(in[0].dtype) && in[0].dims.rank == 2 && attrs.head_dim % 2 == 0 &&
             in[0].dims[1] == row_elements(attrs),
         "rope", in, "qkv is not [T,(H+2K)·d] with even d");
  if (attrs.qk_norm)
    for (int i : {1, 2})
      expect(in[i].dtype == Dtype::f32 && in[i].dims.count() == attrs.head_dim, "rope", in,
             "qw or kw is not f32[d]");
  if (attrs.decode)
    expect(in.back().dims.count() == int64_t{sizeof(StepScalars)}, "rope", in, "no scalars");
  return {in[0]};
}

Cost cost(const Attrs& attrs, const std::vector<TensorType>& in) {
  return {.flops = (attrs.qk_norm ? 10.0 : 6.0) * static_cast<double>(in[0].dims.count()),
          .bytes = 2.0 * static_cast<double>(bytes_of(in[0]))};
}

Cost grad_cost(const Attrs& attrs, const std::vector<TensorType>& in) {
  return {.flops = (attrs.qk_norm ? 20.0 : 6.0) * static_cast<double>(in[0].dims.count()),
          .bytes = (attrs.qk_norm ? 3.0 : 2.0) * static_cast<double>(bytes_of(in[0]))};
}

// Cosines and sines of every position of the call.
int64_t table_bytes(const Attrs& attrs, const std::vector<TensorType>& in) {
  const int64_t rows = in[0].dims[0];
  const int64_t positions = attrs.decode ? rows : std::min<int64_t>(rows, attrs.context);
  return aligned(positions * attrs.head_dim * 4);
}

int64_t workspace(const Attrs& attrs, const std::vector<TensorType>& in,
                  const WorkspaceRules& rules) {
  const int64_t table = table_bytes(attrs, in);
  return rules.cuda ? device_aligned(table) : table;
}

int64_t grad_workspace(const Attrs& attrs, const std::vector<TensorType>& in,
                       const WorkspaceRules& rules) {
  const int64_t table = table_bytes(attrs, in), d = attrs.head_dim;
  const int64_t cpu = table + (attrs.qk_norm ? 2 * row_block_bytes(d) : 0);
  if (!rules.cuda) return cpu;
  const RowRuns runs = qk_norm_runs(in[0].dims[0]);
  return std::max(cpu, device_aligned(table) + (attrs.qk_norm ? row_run_bytes(runs, 2 * d) : 0));
}

struct Shape {
  int32_t batch, context, heads, kv_heads, head_dim;
};

OpCase forward_case(Dtype t, const Shape& s, bool qk_norm, bool llama3, bool decode) {
  OpCase c;
  c.label = "B" + std::to_string(s.batch) + " C" + std::to_string(s.context) + " H" +
            std::to_string(s.heads) + " K" + std::to_string(s.kv_heads) + " d" +
            std::to_string(s.head_dim) + (qk_norm ? " qk_norm" : "") + (llama3 ? " llama3" : "") +
            (decode ? " decode" : "");
  Attrs& a = c.attrs;
  a.batch = s.batch;
  a.context = s.context;
  a.heads = s.heads;
  a.kv_heads = s.kv_heads;
  a.head_dim = s.head_dim;
  a.qk_norm = qk_norm;
  a.decode = decode;
  a.eps = 1e-6f;
  a.llama3_rope = llama3;
  if (llama3) a.rope_original = 64;  // so that short contexts meet all three branches
  const int64_t rows = decode ? std::max(1, s.context / 2) : int64_t{s.batch} * s.context;
  const TensorType qkv = {t, Dims(rows, row_elements(a))}, w = f32_of(Dims(s.head_dim));
  c.in = {qkv};
  if (qk_norm) c.in.insert(c.in.end(), 2, w);
  if (decode) c.in.push_back(scalars_type());
  c.out = {qkv};
  if (!qk_norm) c.may_alias = {{0, 0}};
  c.bf16_tolerance = 5e-3;
  return c;
}

OpCase grad_case(Dtype t, const Shape& s, bool qk_norm, bool llama3) {
  OpCase c = forward_case(t, s, qk_norm, llama3, false);
  const TensorType qkv = c.out[0], w = f32_of(Dims(s.head_dim));
  c.in = {qkv};
  if (qk_norm) {
    c.in = {qkv, qkv, w, w};
    c.out = {qkv, w, w};
    c.accumulate = {1, 2};
  }
  c.may_alias = {{0, 0}};
  return c;
}

constexpr Shape kShapes[] = {
    {1, 1, 1, 1, 2}, {2, 5, 2, 1, 6}, {1, 33, 4, 2, 16}, {2, 65, 6, 3, 64}, {1, 17, 2, 2, 128}};

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (const Shape& s : kShapes)
    for (bool qk_norm : {false, true})
      for (bool llama3 : {false, true}) {
        add_both(all, [&](Dtype t) { return forward_case(t, s, qk_norm, llama3, false); });
        if (!llama3)
          add_both(all, [&](Dtype t) { return forward_case(t, s, qk_norm, false, true); });
      }
  return all;
}

std::vector<OpCase> grad_cases() {
  std::vector<OpCase> all;
  for (const Shape& s : kShapes)
    for (bool qk_norm : {false, true})
      for (bool llama3 : {false, true})
        add_both(all, [&](Dtype t) { return grad_case(t, s, qk_norm, llama3); });
  return all;
}

}  // namespace

const OpDef rope_def = {.name = "rope",
                        .infer = infer,
                        .cost = cost,
                        .workspace = workspace,
                        .backward = rope_backward,
                        .cases = cases};
const OpDef rope_grad_def = {.name = "rope_grad",
                             .infer = nullptr,
                             .cost = grad_cost,
                             .workspace = grad_workspace,
                             .backward = nullptr,
                             .cases = grad_cases};

}  // namespace spillway
