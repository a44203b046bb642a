// Small models whose steps stand for others': for calibration and benchmarks.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace spillway {

struct DrawnModel {
  bool llama = false, bf16 = false;
  int64_t layers = 1, hidden = 64, context = 64, vocab = 256;
  int64_t micro_batch = 1, micro_batches = 1;  // on every rank
};

// `base` with this model, nothing pinned, memory and link as the profile has them. Heads have 64
// elements.
Config config_of(const DrawnModel& model, const Config& base, int ranks);

}  // namespace spillway
