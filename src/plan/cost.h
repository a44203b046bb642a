// Internal to the planner: what one op takes on a profile's device, alone.
#pragma once

#include <vector>

#include "config/hardware.h"
#include "graph/op.h"

namespace spillway {

double op_seconds(OpKind op, const Attrs& attrs, const std::vector<TensorType>& in,
                  const HardwareProfile& profile, bool bf16);

}  // namespace spillway
