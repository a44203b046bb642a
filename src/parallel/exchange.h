// Building exchanges, message by message.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"

namespace spillway {

inline Node exchange_node(const std::string& name) {
  Node node;
  node.name = name;
  node.kind = NodeKind::exchange;
  return node;
}

// All ranks but `rank`, ascending.
inline std::vector<int> peers_of(int rank, int ranks) {
  std::vector<int> result;
  for (int peer = 0; peer < ranks; ++peer)
    if (peer != rank) result.push_back(peer);
  return result;
}

inline void send(Node& node, Operand operand, const std::vector<int>& peers) {
  node.in.push_back(operand);
  for (int peer : peers)
    node.transfers.push_back({peer, true, static_cast<int32_t>(node.in.size()) - 1});
}

inline void receive(Node& node, Operand operand, int peer) {
  node.out.push_back(operand);
  node.transfers.push_back({peer, false, static_cast<int32_t>(node.out.size()) - 1});
}

}  // namespace spillway
