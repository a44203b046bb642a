#include "program/uses.h"

#include <algorithm>
#include <tuple>

namespace spillway {

Store store_of(const Schedule& schedule, const Sequencer& sequencer, const Instance& instance) {
  const Tensor& t = schedule.graph.tensors[instance.tensor];
  switch (t.role) {
    case Role::input:
      return Store::input;
    case Role::scalar:
    case Role::kv_cache:
      return Store::fixed;
    case Role::staging:
    case Role::gathered:
    case Role::partial_grad:
      return Store::ring;
    case Role::param:
    case Role::master:
    case Role::moment:
    case Role::grad:
      return sequencer.where(instance.tensor) == Where::host ? Store::ring : Store::fixed;
    case Role::activation:
      if (instance.which == 1 || !sequencer.saved(instance.tensor)) return Store::transient;
      switch (sequencer.where(instance.tensor)) {
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

namespace {

// Vocabulary tables pass through rings of their own, so that they do not set the slot size of the
// blocks; updates are cut into units of about a block's size and use the blocks' ring.
bool homeless(Role role) {
  return role == Role::staging || role == Role::gathered || role == Role::partial_grad;
}

std::string ring_name(const Graph& g, const Tensor& t, Phase phase) {
  if (t.role == Role::activation || t.role == Role::staging) return t.place;
  if (phase == Phase::update || (t.layer >= 1 && t.layer <= g.layers)) return t.place + "/block";
  return t.place + (t.layer == 0 ? "/embedding" : "/head");
}

using UseKey = std::tuple<std::string, int32_t, int32_t, int32_t, int32_t>;

UseKey key_of(const Graph& g, const Instance& instance, const Item& item) {
  const Tensor& t = g.tensors[instance.tensor];
  const std::string ring = ring_name(g, t, item.phase);
  const int32_t phase = static_cast<int32_t>(item.phase), micro = instance.micro;
  if (t.role == Role::staging) return {ring, item.node.unit, phase, 0, micro};
  if (t.role == Role::activation || t.role == Role::partial_grad)
    return {ring, t.layer, phase, 0, micro};
  if (item.phase == Phase::update) return {ring, item.node.unit, phase, 0, micro};
  return {ring, t.layer, phase, item.node.layer, micro};
}

std::string layer_label(const Graph& g, int32_t layer) {
  if (layer == 0) return "embed";
  if (layer > g.layers) return "head";
  return std::to_string(layer - 1);
}

ElementRange range_of(const Tensor& t, const Operand& o) {
  const int64_t count = o.count < 0 ? t.dims.count() : o.count;
  return {o.begin, o.begin + count};
}

StagePlan find_uses(const Schedule& schedule, const Sequencer& sequencer, const Stage& stage) {
  const Graph& g = schedule.graph;
  StagePlan plan;
  plan.items = sequencer.build(stage);
  std::map<UseKey, int32_t> index;
  for (int32_t p = 0; p < static_cast<int32_t>(plan.items.size()); ++p) {
    const Item& item = plan.items[p];
    const auto visit = [&](const Instance& instance, const Operand& operand, bool read,
                           bool write) -> int32_t {
      if (store_of(schedule, sequencer, instance) != Store::ring) return kNone;
      const Tensor& t = g.tensors[instance.tensor];
      const UseKey key = key_of(g, instance, item);
      auto [it, fresh] = index.try_emplace(key, static_cast<int32_t>(plan.uses.size()));
      if (fresh) {
        Use use;
        use.ring = std::get<0>(key);
        use.label = t.place + "@" + layer_label(g, t.layer);
        use.micro = instance.micro;
        use.first = p;
        plan.uses.push_back(std::move(use));
      }
      Use& use = plan.uses[it->second];
      use.last = p;
      Piece& piece = use.pieces[instance.tensor];
      RangeSet touched;
      touched.add(range_of(t, operand));
      piece.held.add(touched);
      if (read) piece.fetch.add(touched.without(piece.written));
      if (write && !touched.empty()) {
        piece.written.add(touched);
        piece.last_write = p;
      }
      return it->second;
    };
    std::vector<int32_t> in_use, out_use;
    for (size_t i = 0; i < item.in.size(); ++i)
      in_use.push_back(visit(item.in[i], item.node.in[i], true, false));
    for (size_t i = 0; i < item.out.size(); ++i)
      out_use.push_back(visit(item.out[i], item.node.out[i],
                              item.node.out[i].accumulate && item.accumulate, true));
    plan.in_use.push_back(std::move(in_use));
    plan.out_use.push_back(std::move(out_use));
  }
  std::map<std::string, int32_t> count;
  for (Use& use : plan.uses) {
    use.index = count[use.ring]++;
    for (auto& [tensor, piece] : use.pieces) {
      for (const ElementRange& range : piece.held.ranges()) {
        piece.offsets.push_back(use.slot_bytes);
        const int64_t bytes = range.count() * size_of(g.tensors[tensor].dtype);
        use.slot_bytes = round_up(use.slot_bytes + bytes, 256);
      }
    }
  }
  return plan;
}

// Drops what no later use reads from the bytes to write back. Parameters, masters and moments
// outlive the step and are always written back.
void trim_writebacks(const Schedule& schedule, std::vector<StagePlan>& stages) {
  const Graph& g = schedule.graph;
  for (size_t s = 0; s < stages.size(); ++s) {
    for (Use& use : stages[s].uses) {
      for (auto& [tensor, piece] : use.pieces) {
        const Role role = g.tensors[tensor].role;
        if (piece.written.empty() || role == Role::param || role == Role::master ||
            role == Role::moment || homeless(role) || g.tensors[tensor].carried)
          continue;
        RangeSet needed;
        for (size_t later = s; later < stages.size(); ++later) {
          // Earlier uses of the same stage read what an iteration before them left.
          const bool next_iteration = later == s && schedule.stages[s].trip > 1;
          if (role == Role::activation && later > s) break;
          for (const Use& other : stages[later].uses) {
            if (other.micro != use.micro ||
                (later == s && other.first <= use.last && !next_iteration))
              continue;
            auto it = other.pieces.find(tensor);
            if (it != other.pieces.end()) needed.add(it->second.fetch);
          }
        }
        piece.written = piece.written.common(needed);
      }
    }
  }
}

}  // namespace

std::vector<StagePlan> plan_stages(const Schedule& schedule, const Sequencer& sequencer) {
  std::vector<StagePlan> stages;
  for (const Stage& stage : schedule.stages)
    stages.push_back(find_uses(schedule, sequencer, stage));
  trim_writebacks(schedule, stages);
  return stages;
}

void size_rings(const Schedule& schedule, const Placement& placement,
                const std::vector<StagePlan>& stages, std::map<std::string, Ring>& rings) {
  const Graph& g = schedule.graph;
  for (const StagePlan& stage : stages) {
    std::map<std::string, std::vector<const Use*>> by_ring;
    for (const Use& use : stage.uses) by_ring[use.ring].push_back(&use);
    for (const auto& [name, uses] : by_ring) {
      const Tensor& first = g.tensors[uses[0]->pieces.begin()->first];
      Ring& ring = rings[name];
      ring.place = first.place;
      ring.has_home = !homeless(first.role);
      // What gathers and reduces ahead overlaps by itself.
      const int32_t wanted =
          ring.has_home || first.role == Role::staging ? placement.slots_of(first.place) : 1;
      int32_t slots = std::min<int32_t>(wanted, static_cast<int32_t>(uses.size()));
      const auto overlaps = [&] {
        for (size_t u = slots; u < uses.size(); ++u)
          if (uses[u]->first <= uses[u - slots]->last) return true;
        return false;
      };
      while (overlaps()) ++slots;
      ring.slots = std::max(ring.slots, slots);
      for (const Use* use : uses) ring.slot_bytes = std::max(ring.slot_bytes, use->slot_bytes);
    }
  }
}

}  // namespace spillway
