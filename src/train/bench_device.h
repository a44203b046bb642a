// `train bench device`: what a hardware profile says of the device, measured.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"

namespace spillway {

// Prints copies alone and under a GEMM, device memory beside the arena after each phase of
// start-up, and for a step of `config` every op's share of its roofline: the larger of FLOPs over
// the profile's peak and bytes over its memory bandwidth, against the time it took. Shares are
// against the profile, whose numbers the output repeats. `json`: a file for the same, or "".
void bench_device(const Config& config, int threads, int64_t repeat, const std::string& json);

}  // namespace spillway
