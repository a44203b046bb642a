#include "parallel/units.h"

#include <algorithm>

namespace spillway {
namespace {

// Elements of all ranks in one unit: an exchange stages most of a unit's gradient, and with units
// of a part of a layer a part of the layer's sum waits for the next.
constexpr int64_t kLargestUnit = int64_t{384} << 20;

}  // namespace

std::vector<Unit> make_units(const Graph& graph, int ranks) {
  std::vector<int64_t> shard(static_cast<size_t>(graph.layers) + 2, 0);
  const auto layer_of = [&](const Param& p) { return graph.tensors[p.param].layer; };
  const auto total_of = [&](const Param& p) { return graph.tensors[p.param].dims.count(); };
  for (const Param& p : graph.params) shard[layer_of(p)] += shard_capacity(total_of(p), ranks);
  int64_t target = 0;
  for (int32_t layer = 1; layer <= graph.layers; ++layer) target = std::max(target, shard[layer]);
  target = std::min(target, ceil_div(kLargestUnit, static_cast<int64_t>(ranks)));

  std::vector<Unit> units;
  for (int32_t layer = 0; layer <= graph.layers + 1; ++layer) {
    int64_t room = 0;
    bool open = false;  // the last unit is of this layer and may take more
    for (size_t i = 0; i < graph.params.size(); ++i) {
      if (layer_of(graph.params[i]) != layer) continue;
      const int64_t total = total_of(graph.params[i]), block = block_elements(total);
      const int64_t capacity = shard_capacity(total, ranks);
      for (int64_t begin = 0; begin < capacity;) {
        if (!open || (room < block && room < capacity - begin)) {
          units.push_back({layer, {}});
          room = target;
          open = true;
        }
        int64_t count = capacity - begin;
        if (count > room) count = std::max(block, room / block * block);
        count = std::min(count, capacity - begin);
        units.back().pieces.push_back({static_cast<int32_t>(i), begin, count});
        room = std::max<int64_t>(0, room - count);
        begin += count;
      }
    }
  }
  return units;
}

Range part_of_places(const Piece& piece, int64_t total, int ranks, int64_t first, int64_t places) {
  const int64_t base = ranks * piece.begin;
  const int64_t begin = std::min(total, base + first * piece.count);
  const int64_t end = std::min(total, base + (first + places) * piece.count);
  return {begin, end - begin};
}

Range owned_part(const Piece& piece, int64_t total, const ParallelSpec& spec, int rank) {
  return part_of_places(piece, total, spec.ranks, spec.place_of(rank), 1);
}

std::vector<std::vector<Range>> owned_ranges(const Graph& graph, const std::vector<Unit>& units,
                                             const ParallelSpec& spec) {
  std::vector<std::vector<Range>> result(graph.params.size());
  for (const Unit& unit : units)
    for (const Piece& piece : unit.pieces) {
      const int64_t total = graph.tensors[graph.params[piece.param].param].dims.count();
      result[piece.param].push_back(owned_part(piece, total, spec, spec.rank));
    }
  return result;
}

}  // namespace spillway
