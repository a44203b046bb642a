#include "graph/ops/rmsnorm.h"

#include <cmath>
#include <vector>

#include "kernels/reference/operands.h"
#include "kernels/reference/table.h"

namespace spillway::reference {

void rmsnorm(const KernelArgs& args) {
  const bool residual = args.attrs->residual;
  const int64_t rows = args.in[0].dims.rows(), h = args.in[0].dims.last();
  const double* x = f64(args.in[0]);
  const double* delta = residual ? f64(args.in[1]) : nullptr;
  const double* w = f64(args.in[residual ? 2 : 1]);
  double* resid = residual ? f64(args.out[0]) : nullptr;
  double* y = f64(args.out[residual ? 1 : 0]);
  double* stats = f64(args.out[residual ? 2 : 1]);
  std::vector<double> row(h);
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (int64_t i = 0; i < h; ++i) {
      row[i] = x[r * h + i] + (residual ? delta[r * h + i] : 0);
      squares += row[i] * row[i];
    }
    const double rstd = 1 / std::sqrt(squares / h + args.attrs->eps);
    if (stats) stats[r] = rstd;
    for (int64_t i = 0; i < h; ++i) {
      if (resid) resid[r * h + i] = row[i];
      if (y) y[r * h + i] = row[i] * rstd * w[i];
    }
  }
}

void rmsnorm_grad(const KernelArgs& args) {
  const int64_t rows = args.in[0].dims.rows(), h = args.in[0].dims.last();
  const double* resid = f64(args.in[0]);
  const double* rstd = f64(args.in[1]);
  const double* w = f64(args.in[2]);
  const double* dy = f64(args.in[3]);
  const double* dresid = args.attrs->residual ? f64(args.in[4]) : nullptr;
  double* dx = f64(args.out[0]);
  double* dw = f64(args.out[1]);
  begin_sum(args, args.out[1]);
  for (int64_t r = 0; r < rows; ++r) {
    const double* row = resid + r * h;
    const double* g = dy + r * h;
    double mean = 0;  // of g·w·x̂
    for (int64_t i = 0; i < h; ++i) mean += g[i] * w[i] * row[i] * rstd[r] / h;
    for (int64_t i = 0; i < h; ++i) {
      const double normed = row[i] * rstd[r];
      const double arrived = dresid ? dresid[r * h + i] : 0;
      dx[r * h + i] = arrived + rstd[r] * (g[i] * w[i] - normed * mean);
      dw[i] += g[i] * normed;
    }
  }
}

}  // namespace spillway::reference
