// select_row and norm_finish: a row and a few scalars, the same on every machine.
#include <cmath>
#include <cstring>

#include "kernels/cpu/table.h"

namespace spillway::cpu {

void select_row(const KernelArgs& args) {
  const TensorArg& x = args.in[0];
  const int64_t count = args.in[1].as<StepScalars>()->count;
  const int64_t row = count < 1 ? 0 : (count > x.dims[0] ? x.dims[0] : count) - 1;
  const int64_t bytes = x.dims.last() * size_of(x.dtype);
  if (x.dims[0] > 0) std::memcpy(args.out[0].data, x.as<char>() + row * bytes, bytes);
}

void norm_finish(const KernelArgs& args) {
  const double* partials = args.in[0].as<double>();
  const double* losses = args.in[1].as<double>();
  StepScalars scalars = *args.in[2].as<StepScalars>();
  double squares = 0, loss = 0;
  for (int64_t i = 0; i < args.in[0].dims.count(); ++i) squares += partials[i];
  for (int64_t i = 0; i < args.in[1].dims.count(); ++i) loss += losses[i];
  scalars.norm = std::sqrt(squares);
  scalars.loss = loss;
  const double clip = args.attrs->clip;
  const double scale = clip > 0 ? clip / (scalars.norm + 1e-6) : 1.0;
  scalars.clip_scale = static_cast<float>(scale < 1 ? scale : 1.0);
  scalars.skip_update = std::isfinite(scalars.norm) && std::isfinite(loss) ? 0 : 1;
  *args.out[0].as<StepScalars>() = scalars;
}

}  // namespace spillway::cpu
