#include "graph/ops/gelu.h"

#include <cmath>

#include "kernels/reference/operands.h"
#include "kernels/reference/table.h"

namespace spillway::reference {
namespace {

const double kScale = std::sqrt(2 / 3.14159265358979323846);
constexpr double kCubic = 0.044715;

}  // namespace

void gelu(const KernelArgs& args) {
  const double* x = f64(args.in[0]);
  double* y = f64(args.out[0]);
  for (int64_t i = 0; i < args.in[0].dims.count(); ++i)
    y[i] = 0.5 * x[i] * (1 + std::tanh(kScale * (x[i] + kCubic * x[i] * x[i] * x[i])));
}

void gelu_grad(const KernelArgs& args) {
  const double* x = f64(args.in[0]);
  const double* dy = f64(args.in[1]);
  double* dx = f64(args.out[0]);
  for (int64_t i = 0; i < args.in[0].dims.count(); ++i) {
    const double tanh = std::tanh(kScale * (x[i] + kCubic * x[i] * x[i] * x[i]));
    const double slope = kScale * (1 + 3 * kCubic * x[i] * x[i]);
    dx[i] = dy[i] * (0.5 * (1 + tanh) + 0.5 * x[i] * (1 - tanh * tanh) * slope);
  }
}

}  // namespace spillway::reference
