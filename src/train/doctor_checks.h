// Internal to `train doctor`: the checks. Those of one rank look at their process and machine;
// those of all ranks are collective and give each rank its own finding.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "runtime/device.h"
#include "runtime/launch.h"
#include "train/doctor.h"

namespace spillway {

// What a run would need; from a plan.
struct Needs {
  bool known = false;                        // there is a config, and a plan for it
  std::string problem;                       // no plan can be made, or it does not fit
  bool cuda = false;                         // the run wants CUDA devices
  int64_t device_bytes = 0, host_bytes = 0;  // of one rank's arenas
  int64_t checkpoint_bytes = 0;              // of the whole run
  int threads = 0;                           // of a rank; 0: its share of the node
  std::string output;
  // Of a rank, in the memory of the node.
  int64_t node_bytes() const;
};

// Memory that a process may still take, and why not more.
struct MemoryLimit {
  int64_t bytes = 0;
  std::string name;  // "physical memory", "cgroup", "ulimit -v"
};

std::vector<Check> check_host(const Needs& needs, const Communicator& communicator);
Check check_launch(const Launcher& launcher, const Communicator& communicator);
std::vector<Check> check_cuda(const Needs& needs);

// Collective.
Check check_same_program(Communicator& communicator);
Check check_overlap(Communicator& communicator);
std::vector<Check> check_output(const Needs& needs, Communicator& communicator);
std::vector<Check> check_network(Communicator& communicator);

}  // namespace spillway
