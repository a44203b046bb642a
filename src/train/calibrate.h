// `train calibrate`: measures the machine it runs on and writes a hardware profile.
#pragma once

#include <string>

#include "config/config.h"
#include "runtime/device.h"

namespace spillway {

// Measures with the backend, link and threads that `config` says, on every rank at once; a rate is
// its slowest rank's, a duration its longest. Writes a profile that `hardware.profile` takes by its
// path to `out`, each number with its source: those that were measured begin with "measured by
// train calibrate", and what one rank or one node cannot measure is the base profile's. Takes less
// than a minute. Collective; throws Error(bad_input) on all ranks if the file cannot be written,
// which is found out before anything is measured.
void calibrate(const Config& config, const std::string& out, Communicator& communicator);

}  // namespace spillway
