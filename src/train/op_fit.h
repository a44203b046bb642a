// Measured times of an op → the numbers of a hardware profile that give them back.
#pragma once

#include <vector>

#include "config/hardware.h"

namespace spillway {

struct OpSample {
  double flops = 0, bytes = 0;  // as the op's cost counts them
  double seconds = 0;           // measured
};

// The rates, none negative, whose relative error has the least sum of squares over the samples;
// `op` and `bf16` stay unset. At least one sample; where samples cannot tell terms apart, the terms
// that fit best alone.
OpRate fit_op_rate(const std::vector<OpSample>& samples);

}  // namespace spillway
