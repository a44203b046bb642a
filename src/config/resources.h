// What the devices of a node share when all of them do the same at the same time, as the ranks of a
// job do. The simulator, the planner's bound and the verifier all price transfers by this list.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "config/hardware.h"

namespace spillway {

// Kinds of traffic of one device. Rates and bytes of an exchange are those of its busier way.
enum class Traffic : uint8_t { h2d, d2h, intra_node, network, cpu_update };
constexpr int kTraffics = 5;

// At any moment Σ over kinds of weight × bytes a second of that kind ≤ bytes_per_second.
struct SharedResource {
  std::string name;                        // "link, both ways", "host memory", …
  double bytes_per_second = 0;             // one device's share
  std::array<double, kTraffics> weight{};  // by Traffic; 0: does not use it
  double of(Traffic kind) const { return weight[static_cast<size_t>(kind)]; }
};

// The limits of one device when the first `ranks_on_node` ≥ 1 devices of a node are in use, in a
// fixed order: the link each way and both ways, the switch uplink each way, host memory, the CPU
// update, links inside the node, the network card. Every kind has a limit. Throws bad_input naming
// a rate of the profile that is not above zero.
std::vector<SharedResource> shared_resources(const HardwareProfile& profile, int ranks_on_node);

// Bytes a second of `kind` while the device does nothing else: the least bytes_per_second / weight.
double rate_alone(const std::vector<SharedResource>& resources, Traffic kind);

using ByTraffic = std::array<double, kTraffics>;
// Seconds in which these bytes of each kind can move at best: those of the resource that is busiest
// with them. No sharing is faster.
double seconds_alone(const std::vector<SharedResource>& resources, const ByTraffic& bytes);

// Bytes a second of one flow of each kind while flows[kind] of them are under way, shared max-min
// fairly: no flow can be faster without slowing one that is no faster than it. 0 for kinds without
// flows.
ByTraffic max_min_rates(const std::vector<SharedResource>& resources,
                        const std::array<uint8_t, kTraffics>& flows);

}  // namespace spillway
