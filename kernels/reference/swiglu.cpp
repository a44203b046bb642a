#include "graph/ops/swiglu.h"

#include <cmath>

#include "kernels/reference/operands.h"
#include "kernels/reference/table.h"

namespace spillway::reference {

void swiglu(const KernelArgs& args) {
  const double* gu = f64(args.in[0]);
  double* y = f64(args.out[0]);
  const int64_t rows = args.out[0].dims[0], f = args.out[0].dims[1];
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < f; ++i) {
      const double gate = gu[r * 2 * f + i], up = gu[r * 2 * f + f + i];
      y[r * f + i] = gate / (1 + std::exp(-gate)) * up;
    }
}

void swiglu_grad(const KernelArgs& args) {
  const double* gu = f64(args.in[0]);
  const double* dy = f64(args.in[1]);
  double* dgu = f64(args.out[0]);
  const int64_t rows = args.in[1].dims[0], f = args.in[1].dims[1];
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < f; ++i) {
      const double gate = gu[r * 2 * f + i], up = gu[r * 2 * f + f + i];
      const double sigmoid = 1 / (1 + std::exp(-gate)), g = dy[r * f + i];
      dgu[r * 2 * f + i] = g * up * sigmoid * (1 + gate * (1 - sigmoid));
      dgu[r * 2 * f + f + i] = g * gate * sigmoid;
    }
}

}  // namespace spillway::reference
