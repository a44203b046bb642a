#include "program/sequence.h"

#include <functional>
#include <map>

#include "base/error.h"
#include "graph/builder.h"

namespace spillway {

Sequencer::Sequencer(const Schedule& schedule, const Placement& placement)
    : schedule_(schedule),
      placement_(placement),
      producer_(schedule.graph.tensors.size(), kNone),
      saved_(schedule.graph.tensors.size(), false) {
  const Graph& g = schedule.graph;
  for (size_t n = 0; n < g.nodes.size(); ++n) {
    const Node& node = g.nodes[n];
    if (node.pass == Pass::forward) {
      for (const Operand& o : node.out)
        if (g.tensors[o.tensor].role == Role::activation)
          producer_[o.tensor] = static_cast<NodeId>(n);
    } else if (node.pass == Pass::backward) {
      for (const Operand& o : node.in)
        if (g.tensors[o.tensor].role == Role::activation && producer_[o.tensor] != kNone)
          saved_[o.tensor] = true;
    }
  }
}

Where Sequencer::where(TensorId t) const {
  const Tensor& tensor = schedule_.graph.tensors[t];
  auto it = placement_.where.find({tensor.place, tensor.layer});
  return it == placement_.where.end() ? Where::device : it->second;
}

int32_t Sequencer::micro_of(TensorId t, int32_t micro) const {
  switch (schedule_.graph.tensors[t].role) {
    case Role::input:
    case Role::activation:
    case Role::staging:
      return micro;
    case Role::partial_grad:  // one for all micro-batches of a reduction
      return micro / schedule_.spec.reduce_every;
    default:
      return 0;
  }
}

namespace {

Phase phase_of(Pass pass) {
  switch (pass) {
    case Pass::forward:
      return Phase::forward;
    case Pass::backward:
    case Pass::reduce:
      return Phase::backward;
    case Pass::update:
      return Phase::update;
  }
  return Phase::forward;
}

}  // namespace

std::vector<Item> Sequencer::build(const Stage& stage) const {
  const Graph& g = schedule_.graph;
  std::vector<Item> items;
  // Tensors that stand ready for the backward pass in their forward instance, or once recomputed
  // (by micro-batch).
  std::vector<bool> available(g.tensors.size(), false);
  std::vector<std::vector<bool>> recomputed_of(schedule_.choice.group,
                                               std::vector<bool>(g.tensors.size(), false));
  for (size_t t = 0; t < g.tensors.size(); ++t)
    available[t] =
        producer_[t] == kNone || (saved_[t] && where(static_cast<TensorId>(t)) != Where::recompute);

  const auto instance = [&](TensorId t, int32_t micro) {
    return Instance{t, recomputed_of[micro][t] ? 1 : 0, micro_of(t, micro)};
  };

  std::function<void(TensorId, int32_t)> materialise = [&](TensorId t, int32_t micro) {
    std::vector<bool>& recomputed = recomputed_of[micro];
    if (available[t] || recomputed[t]) return;
    if (g.tensors[t].anchor)
      bad_input("place: '{}' is a block's input and cannot be recomputed; choose device or host",
                g.tensors[t].place);
    Node node = recompute_node(g.nodes[producer_[t]],
                               [&](TensorId id) { return available[id] || recomputed[id]; });
    for (const Operand& o : node.in) materialise(o.tensor, micro);
    Item item;
    item.phase = Phase::backward;
    item.micro = micro;
    for (const Operand& o : node.in) item.in.push_back(instance(o.tensor, micro));
    for (const Operand& o : node.out) {
      item.out.push_back({o.tensor, 1, micro_of(o.tensor, micro)});
      if (!available[o.tensor]) recomputed[o.tensor] = true;
    }
    node.name += ".recompute";
    item.node = std::move(node);
    items.push_back(std::move(item));
  };

  for (const Visit& visit : stage.visits) {
    const Node& node = g.nodes[visit.node];
    Item item;
    item.phase = phase_of(node.pass);
    item.micro = visit.micro;
    item.accumulate = visit.accumulate;
    if (node.pass == Pass::backward)
      for (const Operand& o : node.in) materialise(o.tensor, visit.micro);
    const bool backward = item.phase == Phase::backward;
    for (const Operand& o : node.in)
      item.in.push_back(backward ? instance(o.tensor, visit.micro)
                                 : Instance{o.tensor, 0, micro_of(o.tensor, visit.micro)});
    for (const Operand& o : node.out)
      item.out.push_back({o.tensor, 0, micro_of(o.tensor, visit.micro)});
    item.node = node;
    items.push_back(std::move(item));
  }

  // Aliases: an input that dies in an output shares its storage, from its birth on.
  std::map<Instance, Instance> parent;
  const auto root = [&](Instance i) {
    for (auto it = parent.find(i); it != parent.end(); it = parent.find(i)) i = it->second;
    return i;
  };
  std::map<Instance, size_t> last_read;
  for (size_t p = 0; p < items.size(); ++p)
    for (const Instance& i : items[p].in) last_read[i] = p;
  for (size_t p = 0; p < items.size(); ++p) {
    for (const auto& [out, in] : items[p].node.alias) {
      const Instance from = items[p].in[in], to = items[p].out[out];
      if (from == to) continue;
      if (last_read[from] > p || g.tensors[from.tensor].bytes() != g.tensors[to.tensor].bytes() ||
          g.tensors[from.tensor].role != Role::activation)
        internal_error("'{}' is overwritten in place by '{}' but still needed",
                       g.tensors[from.tensor].name, items[p].node.name);
      parent[from] = to;
    }
  }
  for (Item& item : items) {
    for (Instance& i : item.in) i = root(i);
    for (Instance& i : item.out) i = root(i);
  }
  return items;
}

}  // namespace spillway
