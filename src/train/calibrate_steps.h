// What ops take within training steps: their operands where a step has them, in caches or not.
#pragma once

#include <vector>

#include "config/config.h"
#include "config/hardware.h"
#include "runtime/backend.h"
#include "runtime/device.h"
#include "train/workload.h"

namespace spillway {

// Trains small models of both families and precisions, of several widths and numbers of tokens, as
// large as `profile` lets steps of a fraction of a second be, on every rank at once, and fits every
// op's times; a time is its slowest rank's. On one rank, where nothing waits for others, what steps
// take beside their ops is shared out among these. Sorted by op and precision. Collective; no other
// device of this process may exist.
std::vector<OpRate> measure_op_rates(const Config& config, const Topology& topology,
                                     const HardwareProfile& profile, const BackendChoice& backend,
                                     Communicator& communicator);

}  // namespace spillway
