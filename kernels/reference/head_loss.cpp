#include "graph/ops/head_loss.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/operands.h"
#include "kernels/reference/table.h"

namespace spillway::reference {
namespace {

// Loss of all rows; with `dx`, the gradients as well.
double run(const KernelArgs& args, double* dx, double* dw) {
  const Attrs& attrs = *args.attrs;
  const double* x = f64(args.in[0]);
  const double* w = f64(args.in[1]);
  const int32_t* targets = i32(args.in[2]);
  const int64_t rows = args.in[0].dims[0], h = args.in[0].dims[1];
  double loss = 0;
  for (int64_t r = 0; r < rows; ++r) {
    if (dx) std::fill_n(dx + r * h, h, 0.0);
    if (targets[r] < 0) continue;
    std::vector<double> logits(attrs.vocab, 0.0);
    for (int32_t v = 0; v < attrs.vocab; ++v)
      for (int64_t i = 0; i < h; ++i) logits[v] += x[r * h + i] * w[v * h + i];
    const double top = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (double z : logits) sum += std::exp(z - top);
    const double log_sum = top + std::log(sum);
    loss += log_sum - logits[targets[r]];
    if (!dx) continue;
    for (int32_t v = 0; v < attrs.vocab; ++v) {
      const double hit = v == targets[r] ? 1 : 0;
      const double dlogit = attrs.loss_scale * (std::exp(logits[v] - log_sum) - hit);
      for (int64_t i = 0; i < h; ++i) {
        dx[r * h + i] += dlogit * w[v * h + i];
        dw[v * h + i] += dlogit * x[r * h + i];
      }
    }
  }
  return attrs.loss_scale * loss;
}

}  // namespace

void head_loss(const KernelArgs& args) {
  f64(args.out[0])[args.micro] = run(args, nullptr, nullptr);
}

void head_loss_grad(const KernelArgs& args) {
  begin_sum(args, args.out[1]);
  f64(args.out[2])[args.micro] = run(args, f64(args.out[0]), f64(args.out[1]));
}

}  // namespace spillway::reference
