#include "graph/ops/norm.h"

#include <algorithm>
#include <cmath>

#include "kernels/reference/operands.h"
#include "kernels/reference/table.h"

namespace spillway::reference {

void norm_partials(const KernelArgs& args) {
  const double* grad = f64(args.in[0]);
  double* partials = f64(args.out[0]);
  std::fill_n(partials, args.out[0].dims.count(), 0.0);
  for (int64_t i = 0; i < args.in[0].dims.count(); ++i)
    partials[i / args.attrs->block] += grad[i] * grad[i];
}

void norm_finish(const KernelArgs& args) {
  const double* partials = f64(args.in[0]);
  const double* losses = f64(args.in[1]);
  StepScalars& result = scalars(args.out[0]);
  double squares = 0, loss = 0;
  for (int64_t i = 0; i < args.in[0].dims.count(); ++i) squares += partials[i];
  for (int64_t i = 0; i < args.in[1].dims.count(); ++i) loss += losses[i];
  const double clip = args.attrs->clip;
  result.norm = std::sqrt(squares);
  result.loss = loss;
  result.clip_scale =
      clip > 0 ? static_cast<float>(std::min(1.0, clip / (result.norm + 1e-6))) : 1.0f;
  result.skip_update = std::isfinite(result.norm) && std::isfinite(loss) ? 0 : 1;
}

}  // namespace spillway::reference
