#include "graph/ops/rope.h"

#include <cmath>
#include <vector>

#include "graph/ops/rope_frequency.h"
#include "kernels/reference/operands.h"
#include "kernels/reference/table.h"

namespace spillway::reference {
namespace {

// Rotates head x of position p; the gradient is the rotation back.
void rotate(const Attrs& attrs, double p, double direction, double* x) {
  const int half = attrs.head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const double angle = direction * p * rope_frequency(attrs, i);
    const double first = x[i], second = x[i + half];
    x[i] = first * std::cos(angle) - second * std::sin(angle);
    x[i + half] = second * std::cos(angle) + first * std::sin(angle);
  }
}

double rstd_of(const Attrs& attrs, const double* x) {
  double squares = 0;
  for (int i = 0; i < attrs.head_dim; ++i) squares += x[i] * x[i];
  return 1 / std::sqrt(squares / attrs.head_dim + attrs.eps);
}

}  // namespace

void rope(const KernelArgs& args) {
  const Attrs& attrs = *args.attrs;
  const int64_t rows = args.in[0].dims[0], width = args.in[0].dims[1], d = attrs.head_dim;
  const double* qkv = f64(args.in[0]);
  double* out = f64(args.out[0]);
  for (int64_t i = 0; i < rows * width; ++i) out[i] = qkv[i];
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t head = 0; head < attrs.heads + attrs.kv_heads; ++head) {
      double* x = out + r * width + head * d;
      if (attrs.qk_norm) {
        const double* w = f64(args.in[head < attrs.heads ? 1 : 2]);
        const double rstd = rstd_of(attrs, x);
        for (int64_t i = 0; i < d; ++i) x[i] *= rstd * w[i];
      }
      rotate(attrs, static_cast<double>(position_of(args, r)), 1, x);
    }
}

void rope_grad(const KernelArgs& args) {
  const Attrs& attrs = *args.attrs;
  const int64_t rows = args.in[0].dims[0], width = args.in[0].dims[1], d = attrs.head_dim;
  const double* dout = f64(args.in[0]);
  double* dqkv = f64(args.out[0]);
  for (int64_t i = 0; i < rows * width; ++i) dqkv[i] = dout[i];
  if (attrs.qk_norm) {
    begin_sum(args, args.out[1]);
    begin_sum(args, args.out[2]);
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t head = 0; head < attrs.heads + attrs.kv_heads; ++head) {
      double* g = dqkv + r * width + head * d;
      rotate(attrs, static_cast<double>(r % attrs.context), -1, g);
      if (!attrs.qk_norm) continue;
      const int which = head < attrs.heads ? 0 : 1;
      const double* x = f64(args.in[1]) + r * width + head * d;
      const double* w = f64(args.in[2 + which]);
      double* dw = f64(args.out[1 + which]);
      const double rstd = rstd_of(attrs, x);
      double mean = 0;
      for (int64_t i = 0; i < d; ++i) mean += g[i] * w[i] * x[i] * rstd / static_cast<double>(d);
      for (int64_t i = 0; i < d; ++i) {
        dw[i] += g[i] * x[i] * rstd;
        g[i] = rstd * (g[i] * w[i] - x[i] * rstd * mean);
      }
    }
}

}  // namespace spillway::reference
