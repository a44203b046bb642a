// `train sample`: continues a prompt with a checkpoint's model and a KV cache.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"

namespace spillway {

struct SampleOptions {
  std::string checkpoint;
  std::string prompt;  // text for the byte tokenizer; else token ids, separated by spaces
  int64_t tokens = 200;
  double temperature = 0.8;
  uint64_t seed = 1;
};

// Prints prompt and continuation to standard output. When the context is full, its newer half
// becomes the prompt of a fresh one.
ExitCode sample_command(const SampleOptions& options);

}  // namespace spillway
