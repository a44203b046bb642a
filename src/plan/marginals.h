// What a little more of a resource is worth: by the multipliers of the bound's linear program, and
// by planning again with it.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace spillway {

enum class Resource : uint8_t {
  device_memory,
  host_memory,
  link,     // copies between host and device, each way
  peers,    // messages within a node, each way
  network,  // messages between nodes, each way
};

struct Marginal {
  Resource resource = Resource::device_memory;
  double amount = 0;  // bytes, or bytes a second, more for every device
  // Seconds by which it lowers the bound, by the multipliers: of every group size's linear program
  // the rate of change times the amount. More memory never lowers the bound by more than this; what
  // it gains shrinks as it grows.
  double dual_seconds = 0;
  // The plan made with it saves this, never less than 0: the plan at hand is still possible.
  double replanned_seconds = 0;
  double step_seconds = 0, bound_seconds = 0;  // … and takes this, with this bound
};

// The input with `amount` more of a resource.
PlanInput with_more(const PlanInput& input, Resource resource, double amount);

// Of every resource that plans for `input` use, in the order of Resource, for a report that fits.
// Amounts are round numbers, at most an eighth of what is there: 1 GiB, 1 GB/s, or less.
// `several_nodes`: whether messages pass the network.
std::vector<Marginal> marginal_values(const PlanInput& input, const PlanReport& report,
                                      bool several_nodes);

}  // namespace spillway
