#include "program/uses.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace spillway {

SlotPiece* Use::find(TensorId tensor) {
  const auto it = std::lower_bound(pieces.begin(), pieces.end(), tensor,
                                   [](const auto& p, TensorId t) { return p.first < t; });
  return it != pieces.end() && it->first == tensor ? &it->second : nullptr;
}

int32_t Rings::id_of(const std::string& name) {
  const auto [it, fresh] = by_name.try_emplace(name, static_cast<int32_t>(all.size()));
  if (fresh) all.push_back({.name = name});
  return it->second;
}

namespace {

bool staged(Role role) { return role == Role::staging || role == Role::node_staging; }

bool homeless(Role role) {
  return staged(role) || role == Role::gathered || role == Role::partial_grad;
}

// Vocabulary tables pass through rings of their own, so that they do not set the slot size of the
// blocks; updates are cut into units of about a block's size and use the blocks' ring.
std::string ring_name(const Graph& g, const Tensor& t, StepPhase phase) {
  if (t.role == Role::activation || t.role == Role::staging) return t.place;
  if (t.role == Role::node_staging) return t.place + "/nodes";
  if (phase == StepPhase::update || (t.layer >= 1 && t.layer <= g.layers))
    return t.place + "/block";
  return t.place + (t.layer == 0 ? "/embedding" : "/head");
}

// Names of rings are made once a tensor.
class RingOfTensor {
 public:
  RingOfTensor(const Graph& g, Rings& rings) : g_(g), rings_(rings) {
    for (auto& ids : ids_) ids.assign(g.tensors.size(), kNone);
  }
  int32_t operator()(TensorId t, StepPhase phase) {
    int32_t& id = ids_[phase == StepPhase::update][t];
    if (id == kNone) id = rings_.id_of(ring_name(g_, g_.tensors[t], phase));
    return id;
  }

 private:
  const Graph& g_;
  Rings& rings_;
  std::vector<int32_t> ids_[2];  // in updates, and else
};

using UseKey = std::array<int32_t, 5>;

// `passes`: the stage has forward passes. A rotated update's parameters stay for the pass that
// follows: it need not wait for their way home and back.
UseKey key_of(const Tensor& t, int32_t ring, const Item& item, int32_t micro, bool passes,
              bool of_block) {
  const int32_t phase = static_cast<int32_t>(item.phase);
  if (staged(t.role)) return {ring, item.node->unit, phase, 0, micro};
  if (t.role == Role::activation || t.role == Role::partial_grad)
    return {ring, t.layer, phase, 0, micro};
  if (item.phase == StepPhase::update) {
    if (passes && of_block && t.role == Role::param)
      return {ring, t.layer, static_cast<int32_t>(StepPhase::forward), t.layer, micro};
    return {ring, item.node->unit, phase, 0, micro};
  }
  return {ring, t.layer, phase, item.node->layer, micro};
}

ElementRange range_of(const Tensor& t, const Operand& o) {
  const int64_t count = o.count < 0 ? t.dims.count() : o.count;
  return {o.begin, o.begin + count};
}

SlotPiece& piece_of(Use& use, TensorId tensor) {
  if (SlotPiece* piece = use.find(tensor)) return *piece;
  auto at = use.pieces.begin();
  while (at != use.pieces.end() && at->first < tensor) ++at;
  return use.pieces.insert(at, {tensor, {}})->second;
}

StagePlan find_uses(const Schedule& schedule, const Sequencer& sequencer, const Stage& stage,
                    RingOfTensor& ring_of) {
  const Graph& g = schedule.graph;
  StagePlan plan{sequencer.build(stage), {}, {}, {}};
  plan.use_of.reserve(plan.operands.size());
  std::map<UseKey, int32_t> index;
  const bool passes = std::any_of(plan.items.begin(), plan.items.end(), [](const Item& item) {
    return item.phase == StepPhase::forward;
  });
  for (int32_t p = 0; p < static_cast<int32_t>(plan.items.size()); ++p) {
    const Item& item = plan.items[p];
    Instance before;  // the last operand's; the pieces of an exchange are of few tensors
    const auto use_of = [&](const Instance& instance) {
      if (instance == before) return plan.use_of.back();
      before = instance;
      if (sequencer.store(instance) != Store::ring) return kNone;
      const Tensor& t = g.tensors[instance.tensor];
      const int32_t ring = ring_of(instance.tensor, item.phase);
      const bool of_block = t.layer >= 1 && t.layer <= g.layers;
      const auto [it, fresh] =
          index.try_emplace(key_of(t, ring, item, instance.micro, passes, of_block),
                            static_cast<int32_t>(plan.uses.size()));
      if (fresh) {
        Use& use = plan.uses.emplace_back();
        use.ring = ring;
        use.micro = instance.micro;
        use.first = p;
      }
      plan.uses[it->second].last = p;
      return it->second;
    };
    const auto visit = [&](const Instance& instance, const Operand& operand, bool read,
                           bool write) {
      const int32_t u = use_of(instance);
      plan.use_of.push_back(u);
      if (u == kNone) return;
      SlotPiece& piece = piece_of(plan.uses[u], instance.tensor);
      const ElementRange range = range_of(g.tensors[instance.tensor], operand);
      piece.held.add(range);
      if (read) {
        RangeSet touched;
        touched.add(range);
        piece.fetch.add(touched.without(piece.written));
      }
      if (write && range.count() > 0) {
        piece.written.add(range);
        piece.last_write = p;
      }
    };
    const Node& node = *item.node;
    if (node.on_host) {
      for (const auto* operands : {&node.in, &node.out})
        for (const Operand& o : *operands) {
          plan.on_host.push_back({p, o.tensor, {}, operands == &node.out});
          plan.on_host.back().range.add(range_of(g.tensors[o.tensor], o));
          plan.use_of.push_back(kNone);
        }
      continue;
    }
    for (size_t i = 0; i < node.in.size(); ++i) visit(plan.in(item)[i], node.in[i], true, false);
    for (size_t i = 0; i < node.out.size(); ++i)
      visit(plan.out(item)[i], node.out[i], node.out[i].accumulate && item.accumulate, true);
  }
  std::vector<int32_t> count;
  for (Use& use : plan.uses) {
    if (static_cast<size_t>(use.ring) >= count.size()) count.resize(use.ring + 1, 0);
    use.index = count[use.ring]++;
    for (auto& [tensor, piece] : use.pieces) {
      piece.offset = use.slot_bytes;
      for (const ElementRange& range : piece.held.ranges()) {
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
  // What is read of each tensor's home, by stage: by uses, and by updates on the host.
  struct Fetch {
    size_t stage;
    int32_t micro, first;
    const RangeSet* ranges;
  };
  std::vector<std::vector<Fetch>> fetches(g.tensors.size());
  for (size_t s = 0; s < stages.size(); ++s) {
    for (const Use& use : stages[s].uses)
      for (const auto& [tensor, piece] : use.pieces)
        if (!piece.fetch.empty())
          fetches[tensor].push_back({s, use.micro, use.first, &piece.fetch});
    for (const HostTouch& touch : stages[s].on_host)
      if (!touch.write) fetches[touch.tensor].push_back({s, 0, touch.item, &touch.range});
  }
  for (size_t s = 0; s < stages.size(); ++s) {
    // Earlier uses of the same stage read what an iteration before them left.
    const bool next_iteration = schedule.stages[s].trip > 1;
    for (Use& use : stages[s].uses) {
      for (auto& [tensor, piece] : use.pieces) {
        const Role role = g.tensors[tensor].role;
        if (piece.written.empty() || role == Role::param || role == Role::master ||
            role == Role::moment || homeless(role) || g.tensors[tensor].carried)
          continue;
        RangeSet needed;
        for (const Fetch& fetch : fetches[tensor]) {
          if (fetch.stage < s || (role == Role::activation && fetch.stage > s)) continue;
          if (fetch.micro != use.micro ||
              (fetch.stage == s && fetch.first <= use.last && !next_iteration))
            continue;
          needed.add(*fetch.ranges);
        }
        piece.written = piece.written.common(needed);
      }
    }
  }
}

}  // namespace

std::vector<StagePlan> plan_stages(const Schedule& schedule, const Sequencer& sequencer,
                                   Rings& rings) {
  std::vector<StagePlan> stages;
  RingOfTensor ring_of(schedule.graph, rings);
  for (const Stage& stage : schedule.stages)
    stages.push_back(find_uses(schedule, sequencer, stage, ring_of));
  trim_writebacks(schedule, stages);
  return stages;
}

void size_rings(const Schedule& schedule, const Placement& placement,
                const std::vector<StagePlan>& stages, Rings& rings) {
  const Graph& g = schedule.graph;
  for (const StagePlan& stage : stages) {
    std::vector<std::vector<const Use*>> by_ring(rings.all.size());
    for (const Use& use : stage.uses) by_ring[use.ring].push_back(&use);
    for (size_t r = 0; r < by_ring.size(); ++r) {
      const std::vector<const Use*>& uses = by_ring[r];
      if (uses.empty()) continue;
      const Tensor& first = g.tensors[uses[0]->pieces.front().first];
      Ring& ring = rings.all[r];
      ring.place = first.place;
      ring.has_home = !homeless(first.role);
      // What gathers and reduces ahead overlaps by itself.
      const int32_t wanted =
          ring.has_home || staged(first.role) ? placement.slots_of(first.place) : 1;
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

std::vector<std::vector<int32_t>> fetch_positions(const Schedule& schedule, const Rings& rings,
                                                  const StagePlan& plan) {
  const int32_t items = static_cast<int32_t>(plan.items.size());
  const int32_t per_layer = 1 + items / (2 * (schedule.graph.layers + 2));
  std::vector<std::vector<int32_t>> before(items);
  std::vector<std::vector<int32_t>> of_ring(rings.all.size());
  // Item after which the home holds this stage's value.
  const InstanceIndex index(schedule);
  std::vector<int32_t> written_back(index.size(), kNone);
  size_t on_host = 0;
  for (size_t u = 0; u < plan.uses.size(); ++u) {
    const Use& use = plan.uses[u];
    for (; on_host < plan.on_host.size() && plan.on_host[on_host].item < use.first; ++on_host)
      if (const HostTouch& touch = plan.on_host[on_host]; touch.write)
        written_back[index({touch.tensor, 0, 0})] = touch.item;
    const Ring& ring = rings.all[use.ring];
    std::vector<int32_t>& uses = of_ring[use.ring];
    int32_t at = std::max(0, use.first - per_layer * ring.slots);
    if (use.index >= ring.slots)
      at = std::max(at, plan.uses[uses[use.index - ring.slots]].last + 1);
    bool fetch = false;
    for (const auto& [tensor, piece] : use.pieces) {
      fetch = fetch || (ring.has_home && !piece.fetch.empty());
      int32_t& written = written_back[index({tensor, 0, use.micro})];
      at = std::max(at, written + 1);
      if (!piece.written.empty()) written = piece.last_write;
    }
    uses.push_back(static_cast<int32_t>(u));
    if (!fetch) continue;
    if (at > use.first) internal_error("ring '{}' has no slot free in time", ring.name);
    before[at].push_back(static_cast<int32_t>(u));
  }
  return before;
}

}  // namespace spillway
