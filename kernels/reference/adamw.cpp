#include "graph/ops/adamw.h"

#include <cmath>

#include "kernels/reference/operands.h"
#include "kernels/reference/table.h"

namespace spillway::reference {

void adamw(const KernelArgs& args) {
  const Attrs& attrs = *args.attrs;
  const StepScalars& now = scalars(args.in[1]);
  if (now.skip_update) return;
  const double* grad = f64(args.in[0]);
  double* state = f64(args.out[0]);
  double* m = f64(args.out[1]);
  double* v = f64(args.out[2]);
  double* param = args.out_count > 3 ? f64(args.out[3]) : nullptr;
  const double b1 = attrs.beta1, b2 = attrs.beta2;
  for (int64_t i = 0; i < args.in[0].dims.count(); ++i) {
    const double g = grad[i] * now.clip_scale;
    m[i] = b1 * m[i] + (1 - b1) * g;
    v[i] = b2 * v[i] + (1 - b2) * g * g;
    const double step =
        m[i] / now.beta1_correction / (std::sqrt(v[i] / now.beta2_correction) + attrs.eps);
    state[i] -= now.lr * (attrs.weight_decay * state[i] + step);
    if (param) param[i] = state[i];
  }
}

}  // namespace spillway::reference
