#include "parallel/gather.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "parallel/exchange.h"

namespace spillway {
namespace {

struct Use {  // of the gathered parameters of one layer in one pass
  int32_t layer = 0;
  Pass pass = Pass::forward;
  NodeId first = kNone;
  std::set<TensorId> tensors;
};

std::string layer_name(const Graph& graph, int32_t layer) {
  if (layer == 0) return "embedding";
  return layer > graph.layers ? "head" : "blk." + std::to_string(layer - 1);
}

std::vector<Use> find_uses(const Graph& graph) {
  std::map<std::pair<int32_t, Pass>, Use> uses;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    const auto [it, fresh] = uses.try_emplace({node.layer, node.pass});
    Use& use = it->second;
    if (fresh) use = {node.layer, node.pass, static_cast<NodeId>(n), {}};
    for (const Operand& in : node.in)
      if (graph.tensors[in.tensor].role == Role::gathered) use.tensors.insert(in.tensor);
  }
  std::vector<Use> result;
  for (auto& [key, use] : uses) {
    if (use.tensors.empty()) continue;
    if (use.pass == Pass::backward)
      if (const auto forward = uses.find({use.layer, Pass::forward}); forward != uses.end())
        use.tensors.insert(forward->second.tensors.begin(), forward->second.tensors.end());
    result.push_back(use);
  }
  std::sort(result.begin(), result.end(),
            [](const Use& a, const Use& b) { return a.first < b.first; });
  return result;
}

}  // namespace

void shard_parameters(Graph& graph, int ranks) {
  for (Param& p : graph.params) {
    Tensor shard = graph.tensors[p.param];
    shard.name += ".shard";
    shard.dims = Dims(shard_capacity(shard.dims.count(), ranks));
    p.shard = graph.add(std::move(shard));
    graph.tensors[p.param].role = Role::gathered;
    graph.tensors[p.param].place = "gathered_parameters";
  }
}

std::map<NodeId, std::vector<NodeId>> add_gathers(Graph& graph, int rank, int ranks, int ahead) {
  const std::vector<Use> uses = find_uses(graph);
  std::map<TensorId, TensorId> shard_of_tensor;
  for (const Param& p : graph.params) shard_of_tensor[p.param] = p.shard;

  std::map<NodeId, std::vector<NodeId>> before;
  for (size_t u = 0; u < uses.size(); ++u) {
    const Use& use = uses[u];
    std::vector<NodeId>& list = before[uses[u - std::min<size_t>(u, ahead)].first];
    Node exchange = exchange_node(layer_name(graph, use.layer) + ".gather_parameters");
    exchange.layer = use.layer;
    exchange.pass = use.pass;
    const std::vector<int> peers = peers_of(rank, ranks);
    for (const TensorId tensor : use.tensors) {
      const int64_t total = graph.tensors[tensor].dims.count();
      const Range own = shard_of(total, rank, ranks);
      const Operand from{shard_of_tensor.at(tensor), 0, own.count};
      if (own.count > 0) {
        Node copy;
        copy.kind = NodeKind::copy;
        copy.name = graph.tensors[tensor].name + ".own_shard";
        copy.layer = use.layer;
        copy.pass = use.pass;
        copy.in = {from};
        copy.out = {{tensor, own.begin, own.count}};
        list.push_back(static_cast<NodeId>(graph.nodes.size()));
        graph.nodes.push_back(std::move(copy));
        send(exchange, from, peers);
      }
      for (int peer : peers) {
        const Range theirs = shard_of(total, peer, ranks);
        if (theirs.count > 0) receive(exchange, {tensor, theirs.begin, theirs.count}, peer);
      }
    }
    list.push_back(static_cast<NodeId>(graph.nodes.size()));
    graph.nodes.push_back(std::move(exchange));
  }
  return before;
}

}  // namespace spillway
