#include "graph/ops/layernorm.h"

#include <algorithm>

#include "graph/backward_rules.h"
#include "graph/ops/row_blocks.h"
#include "graph/ops/shapes.h"

namespace spillway {
namespace {

std::vector<TensorType> infer(const Attrs& attrs, const std::vector<TensorType>& in) {
  expect(in.size() == (attrs.residual ? 4u : 3u), "layernorm", in, "wrong number of operands");
  const TensorType& x = in[0];
  expect(is_compute(x.dtype) && x.dims.rank == 2, "layernorm", in, "x is not [T,h]");
  if (attrs.residual)
    expect(in[1].dtype == x.dtype && in[1].dims == x.dims, "layernorm", in, "delta is not like x");
  for (size_t i = in.size() - 2; i < in.size(); ++i)
    expect(in[i].dtype == Dtype::f32 && in[i].dims.count() == x.dims[1], "layernorm", in,
           "w or b is not f32[h]");
  std::vector<TensorType> out;
  if (attrs.residual) out.push_back(x);
  out.push_back(x);
  out.push_back(f32_of(Dims(x.dims[0], 2)));
  return out;
}

Cost cost(const Attrs& attrs, const std::vector<TensorType>& in) {
  const double x_bytes = static_cast<double>(bytes_of(in[0]));
  return {.flops = 7.0 * static_cast<double>(in[0].dims.count()),
          .bytes = x_bytes * (attrs.residual ? 4 : 2)};
}

Cost grad_cost(const Attrs&, const std::vector<TensorType>& in) {
  return {.flops = 13.0 * static_cast<double>(in[0].dims.count()),
          .bytes = static_cast<double>(bytes_of(in) + bytes_of(in[0]))};
}

int64_t grad_workspace(const Attrs&, const std::vector<TensorType>& in,
                       const WorkspaceRules& rules) {
  const int64_t rows = in[0].dims[0], h = in[0].dims[1], cpu = 2 * row_block_bytes(h);
  return rules.cuda ? std::max(cpu, row_run_bytes(norm_runs(rows), 2 * h)) : cpu;
}

OpCase base_case(Dtype t, int64_t rows, int64_t h, bool residual) {
  OpCase c;
  c.label = "T" + std::to_string(rows) + " h" + std::to_string(h) + (residual ? " residual" : "");
  c.attrs.residual = residual;
  c.attrs.eps = 1e-5f;
  c.bf16_tolerance = 5e-3;
  const TensorType x = {t, Dims(rows, h)}, w = f32_of(Dims(h)), stats = f32_of(Dims(rows, 2));
  c.in = residual ? std::vector<TensorType>{x, x, w, w} : std::vector<TensorType>{x, w, w};
  c.out = residual ? std::vector<TensorType>{x, x, stats} : std::vector<TensorType>{x, stats};
  if (residual) c.may_alias = {{0, 0}, {0, 1}};
  // Statistics are those of a sum that was rounded.
  if (residual && t == Dtype::bf16) c.f32_tolerance = c.bf16_tolerance;
  return c;
}

OpCase gradient_case(Dtype t, int64_t rows, int64_t h, bool residual) {
  OpCase c = base_case(t, rows, h, residual);
  const TensorType x = {t, Dims(rows, h)}, w = f32_of(Dims(h)), stats = f32_of(Dims(rows, 2));
  c.in = {x, stats, w, x};
  if (residual) c.in.push_back(x);
  c.out = {x, w, w};
  c.accumulate = {1, 2};
  c.f32_tolerance = 1e-5;
  c.may_alias.clear();
  if (residual) c.may_alias = {{0, 4}};
  return c;
}

std::vector<OpCase> all_cases(OpCase (*make)(Dtype, int64_t, int64_t, bool)) {
  std::vector<OpCase> all;
  for (bool residual : {false, true})
    for (const Dims& d : {Dims(3, 5), Dims(7, 17), Dims(1, 3), Dims(2, 33), Dims(65, 129),
                          Dims(128, 192), Dims(300, 64)})
      add_both(all, [=](Dtype t) { return make(t, d[0], d[1], residual); });
  return all;
}

std::vector<OpCase> cases() { return all_cases(base_case); }
std::vector<OpCase> grad_cases() { return all_cases(gradient_case); }

}  // namespace

const OpDef layernorm_def = {.name = "layernorm",
                             .infer = infer,
                             .cost = cost,
                             .workspace = nullptr,
                             .backward = layernorm_backward,
                             .cases = cases};
const OpDef layernorm_grad_def = {.name = "layernorm_grad",
                                  .infer = nullptr,
                                  .cost = grad_cost,
                                  .workspace = grad_workspace,
                                  .backward = nullptr,
                                  .cases = grad_cases};

}  // namespace spillway
