// Building exchanges: who talks to whom on each level, and transfers as runs of peers.
#pragma once

#include <string>
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
  int32_t place_of(int32_t member) const { return first + member * places; }
};

// In the order in which sums go: inside the node, then across nodes; or all at once. Gathers go the
// other way.
std::vector<Level> exchange_levels(const ParallelSpec& spec);

struct Message {
  int32_t peer = 0;
  Range range;  // of the tensor that is sent from or received into
};

// Messages in order of ascending peers, those without elements left out. Neighbours in the tensor
// whose peers are equally spaced become one transfer.
void send_each(Node& node, TensorId tensor, const std::vector<Message>& messages);
void receive_each(Node& node, TensorId tensor, const std::vector<Message>& messages);

// All of `operand` to every member of the level but this rank; nothing if it is empty.
void send_all(Node& node, const Operand& operand, const Level& level);

// This rank sends the level's members what it holds of `piece` in `whole`, of `total` elements, and
// receives there what they hold.
void gather_piece(Node& node, const Piece& piece, int64_t total, int ranks, const Level& level,
                  TensorId whole);

}  // namespace spillway
