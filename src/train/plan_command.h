// `train plan`: what fits, where bytes go, how long a step takes; runs nothing.
#pragma once

#include <string>

#include "base/error.h"
#include "config/config.h"

namespace spillway {

struct PlanOptions {
  int ranks = 1;
  bool json = false;        // JSON alone on standard output, also when it does not fit
  std::string out;          // write the plan here
  std::string plan_file;    // report this plan instead of making one
  std::string verify_file;  // check what this plan claims of its quality, and nothing else
};

ExitCode plan_command(const Config& config, const PlanOptions& options);

}  // namespace spillway
