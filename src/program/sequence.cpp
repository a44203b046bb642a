#include "program/sequence.h"

#include <functional>
#include <string_view>
#include <unordered_map>

#include "base/error.h"
#include "graph/builder.h"

namespace spillway {

namespace {

// By tensor. A tensor that the placement does not name stays on the device.
std::vector<Where> where_of(const Schedule& schedule, const Placement& placement) {
  const Graph& g = schedule.graph;
  std::unordered_map<std::string_view, std::vector<Where>> by_layer;
  for (const auto& [key, where] : placement.where) {
    std::vector<Where>& layers = by_layer[key.first];
    layers.resize(static_cast<size_t>(g.layers) + 2, Where::device);
    if (key.second >= 0 && key.second < g.layers + 2)
      layers[static_cast<size_t>(key.second)] = where;
  }
  std::vector<Where> result(g.tensors.size(), Where::device);
  for (size_t t = 0; t < g.tensors.size(); ++t)
    if (const auto it = by_layer.find(g.tensors[t].place); it != by_layer.end())
      result[t] = it->second[static_cast<size_t>(g.tensors[t].layer)];
  for (size_t t = 0; t < g.tensors.size(); ++t)
    if (const Role role = g.tensors[t].role; role == Role::master || role == Role::moment)
      if (schedule.choice.updates_on_host(g.tensors[t].layer)) result[t] = Where::host;
  return result;
}

}  // namespace

Sequencer::Sequencer(const Schedule& schedule, const Placement& placement)
    : schedule_(schedule),
      producer_(schedule.graph.tensors.size(), kNone),
      where_(where_of(schedule, placement)),
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
  for (int32_t which = 0; which < 2; ++which)
    for (size_t t = 0; t < g.tensors.size(); ++t)
      store_[which].push_back(store_of(static_cast<TensorId>(t), which));
}

int32_t Sequencer::micro_of(TensorId t, int32_t micro) const {
  switch (schedule_.graph.tensors[t].role) {
    case Role::input:
    case Role::activation:
    case Role::staging:
    case Role::node_staging:
      return micro;
    case Role::partial_grad:  // one for all micro-batches of a reduction
      return micro / schedule_.spec.reduce_every;
    default:
      return 0;
  }
}

namespace {

StepPhase phase_of(Pass pass) {
  switch (pass) {
    case Pass::forward:
      return StepPhase::forward;
    case Pass::backward:
    case Pass::reduce:
      return StepPhase::backward;
    case Pass::update:
      return StepPhase::update;
  }
  return StepPhase::forward;
}

}  // namespace

Store Sequencer::store_of(TensorId id, int32_t which) const {
  const Tensor& t = schedule_.graph.tensors[id];
  switch (t.role) {
    case Role::input:
      return Store::input;
    case Role::scalar:
    case Role::kv_cache:
      return Store::fixed;
    case Role::staging:
    case Role::node_staging:
    case Role::gathered:
    case Role::partial_grad:
      return Store::ring;
    case Role::param:
    case Role::master:
    case Role::moment:
    case Role::grad:
      return where(id) == Where::host ? Store::ring : Store::fixed;
    case Role::activation:
      if (which == 1 || !saved(id)) return Store::transient;
      switch (where(id)) {
        case Where::device:
          return Store::fixed;
        case Where::host:
          return Store::ring;
        case Where::recompute:
          return Store::transient;
      }
  }
  return Store::transient;
}

Sequence Sequencer::build(const Stage& stage) const {
  const Graph& g = schedule_.graph;
  Sequence sequence;
  std::vector<Item>& items = sequence.items;
  items.reserve(stage.visits.size());
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
  std::vector<int32_t> aliasing;
  const auto add_item = [&](const Node& node, StepPhase phase, int32_t micro, bool accumulate) {
    if (!node.alias.empty()) aliasing.push_back(static_cast<int32_t>(items.size()));
    items.push_back({&node, static_cast<int32_t>(sequence.operands.size()),
                     static_cast<int32_t>(node.in.size()), static_cast<int32_t>(node.out.size()),
                     phase, micro, accumulate});
  };

  std::function<void(TensorId, int32_t)> materialise = [&](TensorId t, int32_t micro) {
    std::vector<bool>& recomputed = recomputed_of[micro];
    if (available[t] || recomputed[t]) return;
    if (g.tensors[t].anchor)
      bad_input("place: '{}' is a block's input and cannot be recomputed; choose device or host",
                g.tensors[t].place);
    sequence.recomputed.push_back(std::make_unique<Node>(recompute_node(
        g.nodes[producer_[t]], [&](TensorId id) { return available[id] || recomputed[id]; })));
    Node& node = *sequence.recomputed.back();
    node.name += ".recompute";
    for (const Operand& o : node.in) materialise(o.tensor, micro);
    add_item(node, StepPhase::backward, micro, false);
    for (const Operand& o : node.in) sequence.operands.push_back(instance(o.tensor, micro));
    for (const Operand& o : node.out) {
      sequence.operands.push_back({o.tensor, 1, micro_of(o.tensor, micro)});
      if (!available[o.tensor]) recomputed[o.tensor] = true;
    }
  };

  for (const Visit& visit : stage.visits) {
    const Node& node = g.nodes[visit.node];
    if (node.pass == Pass::backward)
      for (const Operand& o : node.in) materialise(o.tensor, visit.micro);
    const StepPhase phase = phase_of(node.pass);
    add_item(node, phase, visit.micro, visit.accumulate);
    for (const Operand& o : node.in)
      sequence.operands.push_back(phase == StepPhase::backward
                                      ? instance(o.tensor, visit.micro)
                                      : Instance{o.tensor, 0, micro_of(o.tensor, visit.micro)});
    for (const Operand& o : node.out)
      sequence.operands.push_back({o.tensor, 0, micro_of(o.tensor, visit.micro)});
  }
  resolve_aliases(sequence, aliasing);
  return sequence;
}

// An input that dies in an output shares its storage, from its birth on.
void Sequencer::resolve_aliases(Sequence& sequence, const std::vector<int32_t>& aliasing) const {
  if (aliasing.empty()) return;
  const Graph& g = schedule_.graph;
  const InstanceIndex index(schedule_);
  const std::vector<Item>& items = sequence.items;
  std::vector<int32_t> last_read(index.size(), kNone);
  for (size_t p = 0; p < items.size(); ++p)
    for (const Instance& i : sequence.in(items[p])) last_read[index(i)] = static_cast<int32_t>(p);
  std::vector<int32_t> parent(index.size(), kNone);  // an operand
  for (const int32_t p : aliasing) {
    for (const auto& [out, in] : items[p].node->alias) {
      const Instance from = sequence.in(items[p])[in], to = sequence.out(items[p])[out];
      if (from == to) continue;
      if (last_read[index(from)] > p ||
          g.tensors[from.tensor].bytes() != g.tensors[to.tensor].bytes() ||
          g.tensors[from.tensor].role != Role::activation)
        internal_error("'{}' is overwritten in place by '{}' but still needed",
                       g.tensors[from.tensor].name, items[p].node->name);
      parent[index(from)] = items[p].first + items[p].inputs + out;
    }
  }
  // Parents stand later; from the end, each is at its root already, however long the chain.
  for (auto i = sequence.operands.rbegin(); i != sequence.operands.rend(); ++i)
    while (parent[index(*i)] != kNone) *i = sequence.operands[parent[index(*i)]];
}

}  // namespace spillway
