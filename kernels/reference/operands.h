// How the reference kernels reach their operands.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "graph/kernel_abi.h"

namespace spillway::reference {

inline double* f64(const TensorArg& t) {
  if (t.dtype != Dtype::f64) internal_error("reference kernel given {}", name_of(t.dtype));
  return t.as<double>();
}
inline const int32_t* i32(const TensorArg& t) {
  if (t.dtype != Dtype::i32) internal_error("reference kernel given {}", name_of(t.dtype));
  return t.as<const int32_t>();
}
inline StepScalars& scalars(const TensorArg& t) { return *t.as<StepScalars>(); }

// The last input, where ops that decode have the step scalars.
inline const StepScalars& last_scalars(const KernelArgs& args) {
  return scalars(args.in[args.in_count - 1]);
}

// Position of row r in its sequence.
inline int64_t position_of(const KernelArgs& args, int64_t r) {
  return args.attrs->decode ? last_scalars(args).position + r : r % args.attrs->context;
}

// Before sums are added to an accumulating output: overwriting starts from zero.
inline void begin_sum(const KernelArgs& args, const TensorArg& out) {
  if (args.accumulate) return;
  double* data = f64(out);
  for (int64_t i = 0; i < out.dims.count(); ++i) data[i] = 0;
}

}  // namespace spillway::reference
