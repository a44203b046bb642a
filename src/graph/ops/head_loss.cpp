#include "graph/ops/head_loss.h"

#include <algorithm>

#include "graph/backward_rules.h"
#include "graph/ops/gemm_workspace.h"
#include "graph/ops/shapes.h"

namespace spillway {
namespace {

std::vector<TensorType> infer(const Attrs& attrs, const std::vector<TensorType>& in) {
  expect(in.size() == 3, "head_loss", in, "wrong number of operands");
  expect(is_compute(in[0].dtype) && in[0].dims.rank == 2, "head_loss", in, "x is not [T,h]");
  expect(in[1].dtype == in[0].dtype && in[1].dims.rank == 2 && in[1].dims[1] == in[0].dims[1],
         "head_loss", in, "w is not [V,h] of x's dtype");
  expect(in[2].dtype == Dtype::i32 && in[2].dims.count() == in[0].dims[0], "head_loss", in,
         "targets are not i32[T]");
  expect(attrs.vocab > 0 && attrs.vocab <= in[1].dims[0] && attrs.chunk > 0, "head_loss", in,
         "vocab is not in 1 … V, or there is no chunk");
  return {{Dtype::f64, Dims(attrs.micro_batches)}};
}

// FLOPs of one of the products between T, V and h.
double product_flops(const std::vector<TensorType>& in) {
  return 2.0 * static_cast<double>(in[0].dims.count()) * static_cast<double>(in[1].dims[0]);
}

// Chunk after chunk the logits are written and read twice, in f32.
double logits_bytes(const std::vector<TensorType>& in) {
  return 4.0 * 4.0 * static_cast<double>(in[0].dims[0]) * static_cast<double>(in[1].dims[0]);
}

int64_t chunk_of(const Attrs& attrs, const std::vector<TensorType>& in) {
  return std::min<int64_t>(attrs.chunk, in[0].dims[0]);
}

double smallest_extent(const Attrs& attrs, const std::vector<TensorType>& in) {
  return static_cast<double>(std::min({chunk_of(attrs, in), in[1].dims[0], in[1].dims[1]}));
}

Cost cost(const Attrs& attrs, const std::vector<TensorType>& in) {
  return {.flops = product_flops(in),
          .bytes = static_cast<double>(bytes_of(in)) + logits_bytes(in),
          .gemm = true,
          .smallest = smallest_extent(attrs, in)};
}

Cost grad_cost(const Attrs& attrs, const std::vector<TensorType>& in) {
  return {
      .flops = 3 * product_flops(in),
      .bytes = static_cast<double>(bytes_of(in) + bytes_of(in[0]) + 2 * 4 * in[1].dims.count()) +
               2 * logits_bytes(in),
      .gemm = true,
      .smallest = smallest_extent(attrs, in)};
}

// One f64 and three f32 values a row (nll; maximum, sum, target's logit), and a chunk of logits.
int64_t rows_and_logits(const Attrs& attrs, const std::vector<TensorType>& in, bool gradient) {
  const int64_t logits = chunk_of(attrs, in) * in[1].dims[0];
  const bool narrow = gradient && in[0].dtype != Dtype::f32;
  return aligned(in[0].dims[0] * 8) + 3 * aligned(in[0].dims[0] * 4) + aligned(logits * 4) +
         (narrow ? aligned(logits * size_of(in[0].dtype)) : 0);
}

// The CUDA kernels': nll of each row in f64, a chunk of logits (in bf16 as well for its gradient),
// and the library's for the GEMMs, which follow one another.
int64_t with_cuda(int64_t cpu, const Attrs& attrs, const std::vector<TensorType>& in, bool gradient,
                  const WorkspaceRules& rules) {
  if (!rules.cuda) return cpu;
  const int64_t logits = chunk_of(attrs, in) * in[1].dims[0];
  const bool narrow = gradient && in[0].dtype != Dtype::f32;
  return std::max(cpu, device_aligned(in[0].dims[0] * 8) + device_aligned(logits * 4) +
                           (narrow ? device_aligned(logits * size_of(in[0].dtype)) : 0) +
                           device_aligned(rules.gemm_workspace));
}

int64_t workspace(const Attrs& attrs, const std::vector<TensorType>& in,
                  const WorkspaceRules& rules) {
  const Dtype t = in[0].dtype;
  const int64_t cpu = rows_and_logits(attrs, in, false) +
                      gemm_workspace(chunk_of(attrs, in), in[1].dims[0], in[0].dims[1], t, t,
                                     Dtype::f32, rules.threads);
  return with_cuda(cpu, attrs, in, false, rules);
}

int64_t grad_workspace(const Attrs& attrs, const std::vector<TensorType>& in,
                       const WorkspaceRules& rules) {
  const Dtype t = in[0].dtype;
  const int64_t chunk = chunk_of(attrs, in), v = in[1].dims[0], h = in[0].dims[1];
  const int64_t cpu = rows_and_logits(attrs, in, true) +
                      gemm_workspace(chunk, v, h, t, t, Dtype::f32, rules.threads) +
                      gemm_workspace(chunk, h, v, t, t, t, rules.threads) +
                      gemm_workspace(v, h, chunk, t, t, Dtype::f32, rules.threads);
  return with_cuda(cpu, attrs, in, true, rules);
}

struct Shape {
  int64_t rows, h, padded;
  int32_t vocab, chunk, micro_batches;
};

constexpr Shape kShapes[] = {{1, 1, 1, 1, 1, 1},        {3, 5, 7, 7, 2, 1},
                             {7, 17, 40, 33, 3, 3},     {5, 33, 128, 65, 100, 2},
                             {65, 33, 128, 127, 17, 1}, {128, 192, 384, 257, 48, 2}};

OpCase base_case(Dtype t, const Shape& s, bool gradient) {
  OpCase c;
  c.label = "T" + std::to_string(s.rows) + " h" + std::to_string(s.h) + " V" +
            std::to_string(s.vocab) + "/" + std::to_string(s.padded) + " chunk" +
            std::to_string(s.chunk);
  c.attrs.vocab = s.vocab;
  c.attrs.chunk = s.chunk;
  c.attrs.micro_batches = s.micro_batches;
  c.attrs.loss_scale = 1.0f / static_cast<float>(s.rows * 2);
  const TensorType x = {t, Dims(s.rows, s.h)}, losses = {Dtype::f64, Dims(s.micro_batches)};
  c.in = {x, {t, Dims(s.padded, s.h)}, i32_of(Dims(s.rows))};
  c.out = {losses};
  c.bf16_tolerance = gradient ? 1e-2 : 1e-3;
  if (gradient) {
    c.out = {x, f32_of(Dims(s.padded, s.h)), losses};
    c.accumulate = {1};
    if (t == Dtype::bf16) c.f32_tolerance = c.bf16_tolerance;  // dlogits are rounded on their way
  }
  return c;
}

std::vector<OpCase> all_cases(bool gradient) {
  std::vector<OpCase> all;
  for (const Shape& s : kShapes) add_both(all, [&](Dtype t) { return base_case(t, s, gradient); });
  return all;
}

std::vector<OpCase> cases() { return all_cases(false); }
std::vector<OpCase> grad_cases() { return all_cases(true); }

}  // namespace

const OpDef head_loss_def = {.name = "head_loss",
                             .infer = infer,
                             .cost = cost,
                             .workspace = workspace,
                             .backward = head_loss_backward,
                             .cases = cases};
const OpDef head_loss_grad_def = {.name = "head_loss_grad",
                                  .infer = nullptr,
                                  .cost = grad_cost,
                                  .workspace = grad_workspace,
                                  .backward = nullptr,
                                  .cases = grad_cases};

}  // namespace spillway
