#include "graph/ops/matmul.h"

#include "kernels/reference/operands.h"
#include "kernels/reference/table.h"

namespace spillway::reference {

void matmul(const KernelArgs& args) {
  const double* a = f64(args.in[0]);
  const double* w = f64(args.in[1]);
  const double* bias = args.attrs->bias ? f64(args.in[2]) : nullptr;
  double* y = f64(args.out[0]);
  const int64_t rows = args.in[0].dims[0], k = args.in[0].dims[1], n = args.in[1].dims[0];
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < n; ++j) {
      double sum = bias ? bias[j] : 0;
      for (int64_t i = 0; i < k; ++i) sum += a[r * k + i] * w[j * k + i];
      y[r * n + j] = sum;
    }
}

void matmul_dinput(const KernelArgs& args) {
  const double* dy = f64(args.in[0]);
  const double* w = f64(args.in[1]);
  double* dx = f64(args.out[0]);
  const int64_t rows = args.in[0].dims[0], n = args.in[0].dims[1], k = args.in[1].dims[1];
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < k; ++i) dx[r * k + i] = 0;
    for (int64_t j = 0; j < n; ++j)
      for (int64_t i = 0; i < k; ++i) dx[r * k + i] += dy[r * n + j] * w[j * k + i];
  }
}

void matmul_dweight(const KernelArgs& args) {
  const double* dy = f64(args.in[0]);
  const double* a = f64(args.in[1]);
  double* dw = f64(args.out[0]);
  const int64_t rows = args.in[0].dims[0], n = args.in[0].dims[1], k = args.in[1].dims[1];
  begin_sum(args, args.out[0]);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t i = 0; i < k; ++i) dw[j * k + i] += dy[r * n + j] * a[r * k + i];
}

void bias_grad(const KernelArgs& args) {
  const double* dy = f64(args.in[0]);
  double* db = f64(args.out[0]);
  const int64_t rows = args.in[0].dims[0], n = args.in[0].dims[1];
  begin_sum(args, args.out[0]);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < n; ++j) db[j] += dy[r * n + j];
}

}  // namespace spillway::reference
