// What an exchange between ranks moves inside a node and across the network, and the least time
// that it takes. The planner's bound, the verifier and the simulator price exchanges by it.
#pragma once

#include <vector>

#include "config/resources.h"
#include "graph/graph.h"

namespace spillway {

// Where a rank stands: nodes hold `ranks_on_node` ≥ 1 consecutive ranks each.
struct RankPlace {
  int rank = 0, ranks_on_node = 1;
};

// Bytes of one rank's messages.
struct ExchangeBytes {
  double sent_in_node = 0, received_in_node = 0, sent_across = 0, received_across = 0;

  // `count` ≥ 1 messages of `bytes` each, with peers `peer`, `peer` + `stride`, …
  void add(const RankPlace& place, int peer, int count, int stride, double bytes, bool send);
  double of(Traffic kind) const;  // the busier way; 0 for what is no exchange's
};

ExchangeBytes exchange_bytes(const Node& exchange, const Graph& graph, const RankPlace& place);

// Start-up, then as long as the resource takes that is busiest with it while the device does
// nothing else. No sharing of the resources is faster.
double exchange_seconds(const ExchangeBytes& bytes, const HardwareProfile& profile,
                        const std::vector<SharedResource>& resources);

}  // namespace spillway
