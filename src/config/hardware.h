// Hardware profiles: what the planner knows of a machine. Read from configs/hardware/NAME.json,
// where every number names its source.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "config/config.h"

namespace spillway {

// What messages of an exchange pass beside their own links or card: nothing else; the device's link
// to its switch; that, the switch's uplink and host memory. In this order.
enum class MessagePath : uint8_t { own, link, host };

// A share of a rate by the smallest extent of a matrix product.
struct SizeShare {
  double size = 0, share = 0;
};

// What one op takes, measured: seconds + FLOPs / flops_per_second + bytes / bytes_per_second, FLOPs
// and bytes as its cost counts them. A rate of 0: no such term.
struct OpRate {
  std::string op;
  bool bf16 = false;  // in runs of this precision
  double seconds = 0, flops_per_second = 0, bytes_per_second = 0;
};

// A memory tier beyond the host's. No plan uses one yet.
struct FurtherTier {
  std::string name, source;
  int64_t bytes = 0;
  double read_bandwidth = 0, write_bandwidth = 0;  // bytes/s of a node
};

struct HardwareProfile {
  std::string name;
  std::string kind;  // "cpu" or "cuda": the backend whose plans it is for
  // One device.
  int64_t device_bytes = 0;    // capacity; 0: physical memory or cgroup limit, shared by the ranks
  int64_t reserve_bytes = 0;   // foreign bytes: driver, libraries, loaded kernels
  int64_t gemm_workspace = 0;  // bytes that one GEMM on a CUDA device may use as scratch
  double peak_f32 = 0, peak_bf16 = 0;  // FLOP/s, the MFU's denominator
  double gemm_fraction = 0.7;          // sustained fraction of the peak in large GEMMs
  // The part of gemm_fraction that GEMMs reach by the smallest of m, n and k; ascending sizes.
  std::vector<SizeShare> gemm_f32_shares, gemm_bf16_shares;
  double attention_fraction = 0.4;           // of the peak, in attention's forward pass
  double attention_backward_fraction = 0.4;  // … and in its backward pass
  double memory_bandwidth = 0;               // bytes/s, read + write
  double memory_fraction = 1;                // sustained by ops that are bound by it
  double launch_seconds = 0;                 // fixed cost of one instruction
  // Ops that were measured, by name and precision; of all others the numbers above say what they
  // take.
  std::vector<OpRate> op_rates;
  // Copies, bytes/s: what one device gets each way with all devices of the node copying both ways,
  // each way alone, and both ways together while no other device copies.
  double h2d_bandwidth = 0, d2h_bandwidth = 0;
  double h2d_alone_bandwidth = 0, d2h_alone_bandwidth = 0;
  double both_ways_bandwidth = 0;
  double copy_seconds = 0;      // start-up time of one copy
  double exchange_seconds = 0;  // … of one exchange between ranks
  // One node.
  int devices_per_node = 1, numa_nodes = 1;
  int devices_per_uplink = 1;   // devices behind one switch
  double uplink_bandwidth = 0;  // bytes/s each way between a switch and the host
  int64_t host_bytes = 0;       // 0: physical memory or cgroup limit
  double host_bandwidth = 0;    // bytes/s of a node, read + write
  // Bytes that AdamW on all cores of a node reads and writes a second, as the op's cost counts
  // them.
  double cpu_update_bandwidth = 0;
  double intra_node_bandwidth = 0, network_bandwidth = 0;  // bytes/s each way per device
  MessagePath intra_node_path = MessagePath::own, network_path = MessagePath::own;
  std::vector<FurtherTier> tiers;
};

// The text of a profile's file: every number with its source, `other_source` where `sources` has
// none by its key. load_profile reads the same profile from it, but for rates, which it has in
// whole bytes a second, and for tiers.
std::string profile_json(const HardwareProfile& profile, const std::string& description,
                         const std::map<std::string, std::string>& sources,
                         const std::string& other_source);

// `profile` is the name of a file of configs/hardware/, or, where it ends in ".json", a path.
// "auto" is "cpu", unless the backend is "cuda" (runtime/backend.h derives it then).
// `hardware.link`, if set, is what every device gets each way, whatever else copies (set_link).
// Throws bad_input for an unknown name
// (nearest named) or a field that is missing, zero or of the wrong type.
HardwareProfile load_profile(const HardwareConfig& config);

// Sets the rates of all copies to `rate` bytes a second each way, without sharing of links and
// switches.
void set_link(HardwareProfile& profile, double rate);

// The part of its peak that a GEMM sustains whose smallest extent is `smallest` (0: large).
// Between two sizes of the table linear in log(size), below the first in proportion to the size:
// a tile takes its time however full it is.
double gemm_fraction(const HardwareProfile& profile, bool bf16, double smallest);

// Every key of the profile's file but name and further tiers, with its value; what plans are made
// from, so a plan for other values is another profile's.
KeyValues profile_values(const HardwareProfile& profile);

// Physical memory or the cgroup limit (v1 and v2), whichever is smaller; never free memory.
int64_t machine_memory_bytes();

// Device and host budgets in bytes for one rank when `ranks_on_node` share the machine.
struct Budgets {
  int64_t device = 0, host = 0;
  friend bool operator==(const Budgets&, const Budgets&) = default;
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
