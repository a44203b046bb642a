// Reduce and update units: parts of the parameters, about a block's worth each, that are summed
// over ranks and updated together.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"

namespace spillway {

// Elements [begin, begin + count) of every rank's shard of one parameter, in whole norm blocks;
// ranks whose shard is shorter hold less of it, or nothing.
struct Piece {
  int32_t param = 0;  // into Graph::params
  int64_t begin = 0, count = 0;
};

struct Unit {
  int32_t layer = 0;
  std::vector<Piece> pieces;
};

// Units by ascending layer. A layer whose shard is larger than the largest block's is cut into
// several, so that vocabulary tables do not need rings several blocks wide.
std::vector<Unit> make_units(const Graph& graph, int ranks);

// The part of `piece` that `rank` owns, in elements of the global parameter of `total` elements.
Range owned_part(const Piece& piece, int64_t total, int rank, int ranks);

}  // namespace spillway
