// `train bench checkpoint`: what saving costs.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace spillway {

// A save in 50 steps against none, taking turns: wall time, and what the main thread waited. Then
// the bandwidth of a shard's file, synced, beside dd's with conv=fsync in the same folder: the
// config's output with "-bench" behind it, removed at the end.
void bench_checkpoint(Config config, int threads, int64_t repeat);

}  // namespace spillway
