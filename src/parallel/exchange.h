// Building exchanges: who talks to whom on each level, and transfers as runs of peers.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "parallel/schedule.h"
#include "parallel/units.h"

namespace spillway {

inline Node exchange_node(const std::string& name) {
  Node node;
  node.name = name;
  node.kind = NodeKind::exchange;
  return node;
}

// Ranks that talk to each other: those of this rank's node, those of its place in all nodes, or all
// ranks. Member k stands for the parts at places [place_of(k), place_of(k) + places).
struct Level {
  std::vector<int> ranks;  // ascending
  int32_t own = 0;         // this rank's index
  int32_t inner = 1;       // width of the tree that sums over the members (graph/ops/rank_sum.h)
  int32_t first = 0, places = 1;
  int32_t width() const { return static_cast<int32_t>(ranks.size()); }
  int32_t stride() const { return width() > 1 ? ranks[1] - ranks[0] : 1; }  // equal everywhere
  int32_t place_of(int32_t member) const { return first + member * places; }
};

// In the order in which sums go: inside the node, then across nodes; or all at once. Gathers go the
// other way.
std::vector<Level> exchange_levels(const ParallelSpec& spec);

// Messages to or from `count` peers: peer, peer + stride, … The first one's elements are `range` of
// the tensor that is sent from or received into, the others' as many, one after the other.
struct Messages {
  int32_t peer = 0;
  Range range;
  int32_t count = 1, stride = 1;
};

// One for each member of the level but this rank, with the elements `range_of(member)`. Those of
// the first `even` members are as many for each, one after the other but for this rank's; after a
// member without elements no other has any.
template <class RangeOf>
std::vector<Messages> one_each(const Level& level, int32_t even, const RangeOf& range_of) {
  std::vector<Messages> result;
  for (const auto& [begin, end] : {std::pair(0, std::min(level.own, even)), {level.own + 1, even}})
    if (begin < end)
      result.push_back({level.ranks[begin], range_of(begin), end - begin, level.stride()});
  for (int32_t k = even; k < level.width(); ++k) {
    if (k == level.own) continue;
    const Range range = range_of(k);
    if (range.count == 0) break;
    result.push_back({level.ranks[k], range});
  }
  return result;
}

// How many of the level's members, the first ones, have a whole part of `piece`.
int32_t even_members(const Piece& piece, int64_t total, int ranks, const Level& level);

// Messages in order of ascending peers, those without elements left out. Neighbours in the tensor
// whose peers are equally spaced become one transfer.
void send_each(Node& node, TensorId tensor, const std::vector<Messages>& messages);
void receive_each(Node& node, TensorId tensor, const std::vector<Messages>& messages);

// All of `operand` to every member of the level but this rank; nothing if it is empty.
void send_all(Node& node, const Operand& operand, const Level& level);

// This rank sends the level's members what it holds of `piece` in `whole`, of `total` elements, and
// receives there what they hold.
void gather_piece(Node& node, const Piece& piece, int64_t total, int ranks, const Level& level,
                  TensorId whole);

}  // namespace spillway
