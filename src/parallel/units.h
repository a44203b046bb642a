// Reduce and update units: parts of the parameters, about a block's worth each, that are summed
// over ranks and updated together.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/schedule.h"

namespace spillway {

// Elements [begin, begin + count) of every rank's shard of one parameter, in whole norm blocks:
// elements [ranks · begin, ranks · (begin + count)) of the parameter, as far as it goes, `count`
// for each rank in order of ParallelSpec::place_of. The last ones hold less, or nothing.
struct Piece {
  int32_t param = 0;  // into Graph::params
  int64_t begin = 0, count = 0;
};

struct Unit {
  int32_t layer = 0;
  std::vector<Piece> pieces;
};

// Units by ascending layer. A layer whose shard is larger than the largest block's is cut into
// several, so that vocabulary tables do not need rings several blocks wide; so is one whose
// gradient is too large to be exchanged at once.
std::vector<Unit> make_units(const Graph& graph, int ranks);

// The part of `piece` that the ranks at places [first, first + places) own, in elements of the
// global parameter of `total` elements.
Range part_of_places(const Piece& piece, int64_t total, int ranks, int64_t first, int64_t places);

// The part of `piece` that `rank` owns.
Range owned_part(const Piece& piece, int64_t total, const ParallelSpec& spec, int rank);

// Ranges of each parameter that this rank owns, by parameter: one for each of its pieces, those
// without elements included.
std::vector<std::vector<Range>> owned_ranges(const Graph& graph, const std::vector<Unit>& units,
                                             const ParallelSpec& spec);

}  // namespace spillway
