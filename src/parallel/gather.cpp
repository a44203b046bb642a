#include "parallel/gather.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "parallel/exchange.h"

namespace spillway {
namespace {

struct Use {  // of the gathered parameters of one layer in one pass, if there are any
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
    if (use.pass == Pass::backward && !use.tensors.empty())
      if (const auto forward = uses.find({use.layer, Pass::forward}); forward != uses.end())
        use.tensors.insert(forward->second.tensors.begin(), forward->second.tensors.end());
    result.push_back(use);
  }
  std::sort(result.begin(), result.end(),
            [](const Use& a, const Use& b) { return a.first < b.first; });
  return result;
}

}  // namespace

void shard_parameters(Schedule& schedule, const std::vector<Unit>& units) {
  Graph& graph = schedule.graph;
  const ParallelSpec& spec = schedule.spec;
  const std::vector<std::vector<Range>> own = owned_ranges(graph, units, spec);
  for (size_t i = 0; i < graph.params.size(); ++i) {
    Param& p = graph.params[i];
    if (!schedule.shards_parameters(graph.tensors[p.param].layer)) continue;
    Tensor shard = graph.tensors[p.param];
    shard.name += ".shard";
    shard.dims = Dims(shard_capacity(shard.dims.count(), spec.ranks));
    p.shard = graph.add(std::move(shard));
    p.own = own[i];
    graph.tensors[p.param].role = Role::gathered;
    graph.tensors[p.param].place = "gathered_parameters";
  }
}

std::map<NodeId, std::vector<NodeId>> add_gathers(Graph& graph, const std::vector<Unit>& units,
                                                  const ParallelSpec& spec, int ahead) {
  const std::vector<Use> uses = find_uses(graph);
  std::map<TensorId, std::vector<Piece>> pieces;
  for (const Unit& unit : units)
    for (const Piece& piece : unit.pieces) pieces[graph.params[piece.param].param].push_back(piece);
  const std::vector<Level> levels = exchange_levels(spec);

  std::map<NodeId, std::vector<NodeId>> before;
  for (size_t u = 0; u < uses.size(); ++u) {
    const Use& use = uses[u];
    if (use.tensors.empty()) continue;
    std::vector<NodeId>& list = before[uses[u - std::min<size_t>(u, ahead)].first];
    const auto add = [&](Node node) {
      node.layer = use.layer;
      node.pass = use.pass;
      list.push_back(static_cast<NodeId>(graph.nodes.size()));
      graph.nodes.push_back(std::move(node));
    };
    for (const TensorId tensor : use.tensors)
      for (const Piece& piece : pieces.at(tensor)) {
        const Range own = owned_part(piece, graph.tensors[tensor].dims.count(), spec, spec.rank);
        if (own.count == 0) continue;
        Node copy;
        copy.kind = NodeKind::copy;
        copy.name = graph.tensors[tensor].name + ".own_shard";
        copy.in = {{graph.params[piece.param].shard, piece.begin, own.count}};
        copy.out = {{tensor, own.begin, own.count}};
        add(std::move(copy));
      }
    for (size_t l = levels.size(); l-- > 0;) {
      Node exchange = exchange_node(layer_name(graph, use.layer) + ".gather_parameters" +
                                    (l > 0 ? ".across_nodes" : ""));
      for (const TensorId tensor : use.tensors)
        for (const Piece& piece : pieces.at(tensor))
          gather_piece(exchange, piece, graph.tensors[tensor].dims.count(), spec.ranks, levels[l],
                       tensor);
      add(std::move(exchange));
    }
  }
  return before;
}

}  // namespace spillway
