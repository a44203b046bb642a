#include "graph/ops/layernorm.h"

#include <cmath>
#include <vector>

#include "kernels/reference/operands.h"
#include "kernels/reference/table.h"

namespace spillway::reference {

void layernorm(const KernelArgs& args) {
  const bool residual = args.attrs->residual;
  const int64_t rows = args.in[0].dims.rows(), h = args.in[0].dims.last();
  const double* x = f64(args.in[0]);
  const double* delta = residual ? f64(args.in[1]) : nullptr;
  const double* w = f64(args.in[residual ? 2 : 1]);
  const double* b = f64(args.in[residual ? 3 : 2]);
  double* resid = residual ? f64(args.out[0]) : nullptr;
  double* y = f64(args.out[residual ? 1 : 0]);
  double* stats = f64(args.out[residual ? 2 : 1]);
  std::vector<double> row(h);
  for (int64_t r = 0; r < rows; ++r) {
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < h; ++i) {
      row[i] = x[r * h + i] + (residual ? delta[r * h + i] : 0);
      mean += row[i] / h;
    }
    for (double v : row) variance += (v - mean) * (v - mean) / h;
    const double rstd = 1 / std::sqrt(variance + args.attrs->eps);
    if (stats) {
      stats[2 * r] = mean;
      stats[2 * r + 1] = rstd;
    }
    for (int64_t i = 0; i < h; ++i) {
      if (resid) resid[r * h + i] = row[i];
      if (y) y[r * h + i] = (row[i] - mean) * rstd * w[i] + b[i];
    }
  }
}

void layernorm_grad(const KernelArgs& args) {
  const int64_t rows = args.in[0].dims.rows(), h = args.in[0].dims.last();
  const double* resid = f64(args.in[0]);
  const double* stats = f64(args.in[1]);
  const double* w = f64(args.in[2]);
  const double* dy = f64(args.in[3]);
  const double* dresid = args.attrs->residual ? f64(args.in[4]) : nullptr;
  double* dx = f64(args.out[0]);
  double* dw = f64(args.out[1]);
  double* db = f64(args.out[2]);
  begin_sum(args, args.out[1]);
  begin_sum(args, args.out[2]);
  for (int64_t r = 0; r < rows; ++r) {
    const double* row = resid + r * h;
    const double* g = dy + r * h;
    const double mean = stats[2 * r], rstd = stats[2 * r + 1];
    double mean_g = 0, mean_gx = 0;  // of g·w and of g·w·x̂
    for (int64_t i = 0; i < h; ++i) {
      mean_g += g[i] * w[i] / h;
      mean_gx += g[i] * w[i] * (row[i] - mean) * rstd / h;
    }
    for (int64_t i = 0; i < h; ++i) {
      const double normed = (row[i] - mean) * rstd;
      const double arrived = dresid ? dresid[r * h + i] : 0;
      dx[r * h + i] = arrived + rstd * (g[i] * w[i] - mean_g - normed * mean_gx);
      dw[i] += g[i] * normed;
      db[i] += g[i];
    }
  }
}

}  // namespace spillway::reference
