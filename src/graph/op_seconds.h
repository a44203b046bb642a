// What one op takes on a device of a hardware profile while no other op computes.
#pragma once

#include <vector>

#include "config/hardware.h"
#include "graph/op.h"

namespace spillway {

// As the profile has measured the op, or else launch_seconds + max(FLOPs / sustained FLOP/s, bytes
// / sustained bytes/s). `bf16`: products and attention count against peak_bf16.
double op_seconds(OpKind op, const Attrs& attrs, const std::vector<TensorType>& in,
                  const HardwareProfile& profile, bool bf16);

// Throws bad_input where the profile has rates of an op that there is none of.
void check_op_rates(const HardwareProfile& profile);

}  // namespace spillway
