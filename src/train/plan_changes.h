// Changes of a run that make it fit, each tried by planning it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "train/workload.h"

namespace spillway {

struct Change {
  // Config keys with their new values as --set takes them.
  std::vector<std::pair<std::string, std::string>> keys;
  bool numerics = false;                     // it changes bits of the result
  int64_t device_bytes = 0, host_bytes = 0;  // of the plan that it makes possible
  double step_seconds = 0;
};

// For a report that does not fit: at most `most` changes with which plans were found that do. First
// those that change no bit of the result, the fastest plan first, then smaller micro-batches.
std::vector<Change> changes_that_fit(const Workload& workload, const PlanReport& report,
                                     size_t most);

}  // namespace spillway
