#include "graph/ops/matmul.h"

#include <algorithm>

#include "graph/backward_rules.h"
#include "graph/ops/gemm_workspace.h"
#include "graph/ops/row_blocks.h"
#include "graph/ops/shapes.h"

namespace spillway {
namespace {

Dtype result_dtype(const Attrs& attrs, const TensorType& a) {
  return attrs.f32_out ? Dtype::f32 : a.dtype;
}

std::vector<TensorType> infer(const Attrs& attrs, const std::vector<TensorType>& in) {
  expect(in.size() == (attrs.bias ? 3u : 2u), "matmul", in, "wrong number of operands");
  const TensorType &a = in[0], &w = in[1];
  expect(is_compute(a.dtype) && a.dims.rank == 2, "matmul", in, "a is not [T,k]");
  expect(w.dtype == a.dtype && w.dims.rank == 2 && w.dims[1] == a.dims[1], "matmul", in,
         "w is not [n,k] of a's dtype");
  if (attrs.bias)
    expect(in[2].dtype == Dtype::f32 && in[2].dims.count() == w.dims[0], "matmul", in,
           "bias is not f32[n]");
  return {{result_dtype(attrs, a), Dims(a.dims[0], w.dims[0])}};
}

Cost gemm_cost(int64_t m, int64_t n, int64_t k, double bytes) {
  return {.flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k),
          .bytes = bytes,
          .gemm = true,
          .smallest = static_cast<double>(std::min({m, n, k}))};
}

Cost cost(const Attrs& attrs, const std::vector<TensorType>& in) {
  const int64_t m = in[0].dims[0], k = in[0].dims[1], n = in[1].dims[0];
  const int64_t y_bytes = m * n * size_of(result_dtype(attrs, in[0]));
  return gemm_cost(m, n, k, static_cast<double>(bytes_of(in) + y_bytes));
}

Cost dinput_cost(const Attrs&, const std::vector<TensorType>& in) {
  const int64_t m = in[0].dims[0], k = in[0].dims[1], n = in[1].dims[1];
  return gemm_cost(m, n, k, static_cast<double>(bytes_of(in) + m * n * size_of(in[0].dtype)));
}

Cost dweight_cost(const Attrs&, const std::vector<TensorType>& in) {
  const int64_t m = in[0].dims[1], k = in[0].dims[0], n = in[1].dims[1];
  return gemm_cost(m, n, k, static_cast<double>(bytes_of(in) + m * n * 4 * 2));
}

Cost bias_cost(const Attrs&, const std::vector<TensorType>& in) {
  return {.flops = static_cast<double>(in[0].dims.count()),
          .bytes = static_cast<double>(bytes_of(in))};
}

// The CUDA kernels': the library's, and a copy of the bias in y's dtype.
int64_t with_cuda(int64_t cpu, int64_t bias, const WorkspaceRules& rules) {
  if (!rules.cuda) return cpu;
  return std::max(cpu, device_aligned(rules.gemm_workspace) + device_aligned(bias * 4));
}

int64_t workspace(const Attrs& attrs, const std::vector<TensorType>& in,
                  const WorkspaceRules& rules) {
  const int64_t m = in[0].dims[0], n = in[1].dims[0], k = in[0].dims[1];
  const int64_t cpu =
      gemm_workspace(m, n, k, in[0].dtype, in[1].dtype, result_dtype(attrs, in[0]), rules.threads);
  return with_cuda(cpu, attrs.bias ? n : 0, rules);
}

int64_t dinput_workspace(const Attrs&, const std::vector<TensorType>& in,
                         const WorkspaceRules& rules) {
  const int64_t m = in[0].dims[0], n = in[1].dims[1], k = in[0].dims[1];
  return with_cuda(gemm_workspace(m, n, k, in[0].dtype, in[1].dtype, in[0].dtype, rules.threads), 0,
                   rules);
}

int64_t dweight_workspace(const Attrs&, const std::vector<TensorType>& in,
                          const WorkspaceRules& rules) {
  const int64_t m = in[0].dims[1], n = in[1].dims[1], k = in[0].dims[0];
  return with_cuda(gemm_workspace(m, n, k, in[0].dtype, in[1].dtype, Dtype::f32, rules.threads), 0,
                   rules);
}

int64_t bias_workspace(const Attrs&, const std::vector<TensorType>& in,
                       const WorkspaceRules& rules) {
  const int64_t rows = in[0].dims[0], n = in[0].dims[1], cpu = row_block_bytes(n);
  return rules.cuda ? std::max(cpu, row_run_bytes(bias_runs(rows), n)) : cpu;
}

// A case of y[m,n] = a[m,k]·w[n,k]ᵀ or of one of its gradients.
OpCase named(int64_t m, int64_t n, int64_t k) {
  OpCase c;
  c.label = "T" + std::to_string(m) + " n" + std::to_string(n) + " k" + std::to_string(k);
  c.bf16_tolerance = 5e-3;
  return c;
}

const std::vector<Dims>& sizes() {
  static const std::vector<Dims> all = {Dims(1, 1, 1),    Dims(1, 7, 5),       Dims(3, 2, 17),
                                        Dims(5, 33, 7),   Dims(17, 3, 2),      Dims(65, 129, 33),
                                        Dims(1, 192, 64), Dims(128, 576, 192), Dims(130, 192, 520)};
  return all;
}

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (const Dims& s : sizes())
    for (bool bias : {false, true})
      for (bool f32_out : {false, true}) {
        if (f32_out && (bias || s[0] > 3)) continue;
        add_both(all, [=](Dtype t) {
          OpCase c = named(s[0], s[1], s[2]);
          c.attrs.bias = bias;
          c.attrs.f32_out = f32_out;
          c.label += std::string(bias ? " bias" : "") + (f32_out ? " to f32" : "");
          c.in = {{t, Dims(s[0], s[2])}, {t, Dims(s[1], s[2])}};
          if (bias) c.in.push_back(f32_of(Dims(s[1])));
          c.out = {{f32_out ? Dtype::f32 : t, Dims(s[0], s[1])}};
          return c;
        });
      }
  return all;
}

std::vector<OpCase> dinput_cases() {
  std::vector<OpCase> all;
  for (const Dims& s : sizes())
    add_both(all, [=](Dtype t) {
      OpCase c = named(s[0], s[1], s[2]);
      c.in = {{t, Dims(s[0], s[1])}, {t, Dims(s[1], s[2])}};
      c.out = {{t, Dims(s[0], s[2])}};
      return c;
    });
  return all;
}

std::vector<OpCase> dweight_cases() {
  std::vector<OpCase> all;
  std::vector<Dims> with_long_sums = sizes();
  with_long_sums.push_back(Dims(2050, 17, 33));
  for (const Dims& s : with_long_sums)
    add_both(all, [=](Dtype t) {
      OpCase c = named(s[0], s[1], s[2]);
      c.in = {{t, Dims(s[0], s[1])}, {t, Dims(s[0], s[2])}};
      c.out = {f32_of(Dims(s[1], s[2]))};
      c.accumulate = {0};
      c.bf16_tolerance = 1e-5;
      return c;
    });
  return all;
}

std::vector<OpCase> bias_cases() {
  std::vector<OpCase> all;
  for (const Dims& s :
       {Dims(1, 1), Dims(3, 5), Dims(33, 17), Dims(64, 7), Dims(129, 192), Dims(1000, 65)})
    add_both(all, [=](Dtype t) {
      OpCase c;
      c.label = "T" + std::to_string(s[0]) + " n" + std::to_string(s[1]);
      c.in = {{t, s}};
      c.out = {f32_of(Dims(s[1]))};
      c.accumulate = {0};
      c.bf16_tolerance = 1e-5;
      return c;
    });
  return all;
}

}  // namespace

const OpDef matmul_def = {.name = "matmul",
                          .infer = infer,
                          .cost = cost,
                          .workspace = workspace,
                          .backward = matmul_backward,
                          .cases = cases};
const OpDef matmul_dinput_def = {.name = "matmul_dinput",
                                 .infer = nullptr,
                                 .cost = dinput_cost,
                                 .workspace = dinput_workspace,
                                 .backward = nullptr,
                                 .cases = dinput_cases};
const OpDef matmul_dweight_def = {.name = "matmul_dweight",
                                  .infer = nullptr,
                                  .cost = dweight_cost,
                                  .workspace = dweight_workspace,
                                  .backward = nullptr,
                                  .cases = dweight_cases};
const OpDef bias_grad_def = {.name = "bias_grad",
                             .infer = nullptr,
                             .cost = bias_cost,
                             .workspace = bias_workspace,
                             .backward = nullptr,
                             .cases = bias_cases};

}  // namespace spillway
