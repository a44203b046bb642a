// What one op takes on a device of a hardware profile while no other op computes.
#pragma once

#include <vector>

#include "config/hardware.h"
#include "graph/op.h"

namespace spillway {

// launch_seconds + max(FLOPs / sustained FLOP/s, bytes / sustained bytes/s). `bf16`: products and
// attention count against peak_bf16.
double op_seconds(OpKind op, const Attrs& attrs, const std::vector<TensorType>& in,
                  const HardwareProfile& profile, bool bf16);

}  // namespace spillway
