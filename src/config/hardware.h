// Hardware profiles: what the planner knows of a machine. Read from configs/hardware/NAME.json,
// where every number names its source.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"

namespace spillway {

struct HardwareProfile {
  std::string name;
  std::string kind;  // "cpu" or "cuda": the backend whose plans it is for
  // One device.
  int64_t device_bytes = 0;    // capacity; 0: physical memory or cgroup limit, shared by the ranks
  int64_t reserve_bytes = 0;   // foreign bytes: driver, libraries, loaded kernels
  int64_t gemm_workspace = 0;  // bytes that one GEMM on a CUDA device may use as scratch
  double peak_f32 = 0, peak_bf16 = 0;           // FLOP/s, the MFU's denominator
  double gemm_fraction = 0.7;                   // sustained fraction of the peak in large GEMMs
  double attention_fraction = 0.4;              // … in attention
  double memory_bandwidth = 0;                  // bytes/s, read + write
  double launch_seconds = 0;                    // fixed cost of one instruction
  double h2d_bandwidth = 0, d2h_bandwidth = 0;  // bytes/s each way with all devices copying
  double copy_seconds = 0;                      // start-up time of one copy
  // One node.
  int devices_per_node = 1, numa_nodes = 1;
  int64_t host_bytes = 0;  // 0: physical memory or cgroup limit
  double host_bandwidth = 0;
  double intra_node_bandwidth = 0, network_bandwidth = 0;  // bytes/s per device
};

// "auto" is "cpu", unless the backend is "cuda" (runtime/backend.h derives it then).
// `hardware.link`, if set, replaces both copy bandwidths. Throws bad_input for an unknown name
// (nearest named) or a field that is missing, zero or of the wrong type.
HardwareProfile load_profile(const HardwareConfig& config);

// Physical memory or the cgroup limit (v1 and v2), whichever is smaller; never free memory.
int64_t machine_memory_bytes();

// Device and host budgets in bytes for one rank when `ranks_on_node` share the machine.
struct Budgets {
  int64_t device = 0, host = 0;
};
Budgets resolve_budgets(const MemoryConfig& memory, const HardwareProfile& profile,
                        int ranks_on_node);

// Folder that holds configs/ (the source tree's, baked in at build time, or SPILLWAY_HOME).
std::string config_root();
// Stems of the JSON files of configs/FOLDER ("models", "hardware"), sorted.
std::vector<std::string> preset_names(const std::string& folder);
// Path of configs/FOLDER/NAME.json. Throws bad_input naming `origin`, `key` and the nearest name.
std::string preset_path(const std::string& folder, const std::string& name, const std::string& key,
                        const std::string& origin);

// The smallest memory limit that the cgroups of `proc_cgroup` (the text of /proc/self/cgroup),
// their parents and the roots set in the hierarchies below `mount` (/sys/fs/cgroup); INT64_MAX if
// none.
int64_t cgroup_memory_limit(const std::string& proc_cgroup, const std::string& mount);

}  // namespace spillway
