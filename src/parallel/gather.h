// ZeRO-3: parameters of which every rank keeps a shard, gathered before a layer uses them.
#pragma once

#include <map>
#include <vector>

#include "parallel/schedule.h"
#include "parallel/units.h"

namespace spillway {

// Turns every parameter of a layer that shards them into one that is gathered: its own tensor
// becomes Role::gathered, and Param::shard ("<name>.shard", `shard_capacity` elements) is what
// stays, with Param::own.
void shard_parameters(Schedule& schedule, const std::vector<Unit>& units);

// Adds the gathers that the graph's nodes need, which are forward and backward ones in issue order:
// before each layer's first use of its gathered parameters in either pass, copies of the own shard
// and an exchange on each level, `ahead` layers early. What a forward op of the layer reads is
// there in its backward pass as well, if anything is: it may be recomputed. Returns the new nodes
// by the node that they go before.
std::map<NodeId, std::vector<NodeId>> add_gathers(Graph& graph, const std::vector<Unit>& units,
                                                  const ParallelSpec& spec, int ahead);

}  // namespace spillway
