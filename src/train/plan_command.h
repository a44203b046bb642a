// `train plan`: what fits, where bytes go, how long a step takes; runs nothing.
#pragma once

#include <string>

#include "base/error.h"
#include "config/config.h"

namespace spillway {

struct PlanOptions {
  int ranks = 1;
  bool json = false;        // JSON alone on standard output, also when it does not fit
  bool marginals = false;   // what a little more memory or bandwidth is worth
  bool pareto = false;      // the fastest plan at each size of device memory
  std::string out;          // write the plan here
  std::string timeline;     // write the planned step's Chrome trace here
  std::string plan_file;    // report this plan instead of making one
  std::string verify_file;  // check what this plan claims of its quality, and nothing else
};

ExitCode plan_command(const Config& config, const PlanOptions& options);

}  // namespace spillway
