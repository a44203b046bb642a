// The path from all resident to the minimum. A fluid estimate of the step (each phase takes as long
// as its busiest lane) prices every move of a unit off the device; the cheapest goes first.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>

#include "graph/builder.h"
#include "graph/op_seconds.h"
#include "plan/search.h"

namespace spillway {
namespace {

enum FluidPhase { kForward, kBackward, kUpdate, kPhases };

// Of a link's time, what can be filled when copies must wait for their slots and each other.
constexpr double kUsableLink = 0.9;

struct Load {  // seconds of each lane in one phase of one step
  double compute = 0, h2d = 0, d2h = 0;
  double seconds() const { return std::max(compute, std::max(h2d, d2h) / kUsableLink); }
};

using Loads = std::array<Load, kPhases>;

double seconds_of(const Loads& loads) {
  double sum = 0;
  for (const Load& load : loads) sum += load.seconds();
  return sum;
}

// Forward ops that the backward pass of a layer must repeat, and what that takes.
class Recompute {
 public:
  Recompute(const PlanInput& input, const ScheduleChoice& choice)
      : graph_(input.train->get(choice).graph),
        producer_(graph_.tensors.size(), kNone),
        backward_(static_cast<size_t>(graph_.layers) + 2) {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (node.pass == Pass::backward) backward_[node.layer].push_back(static_cast<NodeId>(n));
      double seconds = 0;
      if (node.kind == NodeKind::op) {
        std::vector<TensorType> in;
        for (const Operand& o : node.in) {
          const Tensor& t = graph_.tensors[o.tensor];
          in.push_back({t.dtype, o.count < 0 ? t.dims : Dims(o.count)});
        }
        seconds = op_seconds(node.op, node.attrs, in, input.profile, input.bf16);
      }
      seconds_.push_back(seconds);
      if (node.pass == Pass::forward)
        for (const Operand& o : node.out)
          if (graph_.tensors[o.tensor].role == Role::activation)
            producer_[o.tensor] = static_cast<NodeId>(n);
    }
    saved_.assign(graph_.tensors.size(), false);
    for (const auto& nodes : backward_)
      for (const NodeId n : nodes)
        for (const Operand& o : graph_.nodes[n].in)
          if (producer_[o.tensor] != kNone) saved_[o.tensor] = true;
  }

  double node_seconds(NodeId n) const { return seconds_[n]; }

  // `choices` names what the layer's units are, for the cache: blocks are alike.
  double layer_seconds(int32_t layer, const std::string& choices, const Placement& placement) {
    const bool block = layer >= 1 && layer <= graph_.layers;
    const auto [it, fresh] = cache_.try_emplace({block ? 1 : layer, choices}, 0);
    if (fresh) it->second = compute(layer, placement);
    return it->second;
  }

 private:
  double compute(int32_t layer, const Placement& placement) const {
    std::vector<bool> exists(graph_.tensors.size(), false);
    for (size_t t = 0; t < exists.size(); ++t) {
      const Tensor& tensor = graph_.tensors[t];
      exists[t] =
          producer_[t] == kNone ||
          (saved_[t] && placement.where.at({tensor.place, tensor.layer}) != Where::recompute);
    }
    double sum = 0;
    const std::function<void(TensorId)> need = [&](TensorId t) {
      if (exists[t]) return;
      const Node node =
          recompute_node(graph_.nodes[producer_[t]], [&](TensorId id) { return exists[id]; });
      for (const Operand& o : node.in) need(o.tensor);
      sum += seconds_[producer_[t]];
      for (const Operand& o : node.out) exists[o.tensor] = true;
    };
    for (const NodeId n : backward_[layer])
      for (const Operand& o : graph_.nodes[n].in) need(o.tensor);
    return sum;
  }

  const Graph& graph_;
  std::vector<NodeId> producer_;
  std::vector<std::vector<NodeId>> backward_;  // nodes by layer
  std::vector<double> seconds_;                // by node
  std::vector<bool> saved_;
  std::map<std::pair<int32_t, std::string>, double> cache_;
};

struct Point {
  Placement placement;
  int64_t device = 0;  // estimated bytes of units and their rings
};

class Path {
 public:
  Path(const SearchSpace& space, Recompute& recompute)
      : space_(space), input_(*space.input), recompute_(recompute) {
    const Schedule& train = input_.train->get(space.choice);
    micro_batches_ = train.spec.micro_batches;
    groups_ = micro_batches_ / train.choice.group;
    layers_ = train.graph.layers;
    for (size_t n = 0; n < train.graph.nodes.size(); ++n) {
      const double seconds = recompute.node_seconds(static_cast<NodeId>(n));
      switch (train.graph.nodes[n].pass) {
        case Pass::forward:
          loads_[kForward].compute += micro_batches_ * seconds;
          break;
        case Pass::backward:
          loads_[kBackward].compute += micro_batches_ * seconds;
          break;
        case Pass::reduce:
          loads_[kBackward].compute += seconds;
          break;
        case Pass::update:
          loads_[update_phase()].compute += seconds;
          break;
      }
    }
    for (int phase = 0; phase < kPhases; ++phase)
      layer_seconds_[phase] = loads_[phase].compute / (micro_batches_ * (train.graph.layers + 2.0));
    for (const PlaceUnit& unit : place_units(train)) {
      const auto where = space.base.where.at(unit.key);
      if (where == Where::host) add_copies(unit, loads_, 1);
      units_[unit.key] = unit;
    }
    placement_ = space.base;
    for (int32_t layer = 0; layer <= train.graph.layers + 1; ++layer) {
      recompute_seconds_.push_back(recomputed(layer));
      loads_[kBackward].compute += micro_batches_ * recompute_seconds_.back();
    }
    for (const Group& group : space.groups) order_.push_back(order(group));
    next_.assign(space.groups.size(), 0);
    points_.push_back({placement_, device_bytes()});
  }

  // Makes the moves that `allowed` lets through, in order; one point after each.
  void walk(const std::function<bool(const Group&, Where)>& allowed) {
    while (true) {
      double best = 0;
      const Group* group = nullptr;
      Where where = Where::device;
      for (size_t g = 0; g < next_.size(); ++g) {
        const Group& candidate = space_.groups[g];
        if (next_[g] == candidate.units.size()) continue;
        for (const Where choice : candidate.choices) {
          if (choice == Where::device || !allowed(candidate, choice)) continue;
          const PlaceUnit& unit = order_[g][next_[g]];
          const double price =
              (seconds_of(after(unit, choice)) - seconds_of(loads_)) / double(unit.bytes);
          if (group != nullptr && price >= best) continue;
          best = price;
          group = &candidate;
          where = choice;
        }
      }
      if (group == nullptr) return;
      const size_t g = group - space_.groups.data();
      move(order_[g][next_[g]++], where);
      recompute_instead();
      points_.push_back({placement_, device_bytes()});
    }
  }

  const std::vector<Point>& points() const { return points_; }

 private:
  // Copies of the outermost layers have least to hide behind: a pass begins or ends with them.
  std::vector<PlaceUnit> order(const Group& group) const {
    std::vector<PlaceUnit> units = group.units;
    if (group.kind != UnitKind::parameters && group.kind != UnitKind::gradients) return units;
    const int32_t ends = layers_ + 1;
    std::stable_sort(units.begin(), units.end(), [&](const PlaceUnit& a, const PlaceUnit& b) {
      return std::abs(2 * a.key.second - ends) < std::abs(2 * b.key.second - ends);
    });
    return units;
  }

  FluidPhase update_phase() const { return space_.choice.rotates() ? kForward : kUpdate; }

  void move(const PlaceUnit& unit, Where where) {
    loads_ = after(unit, where);
    placement_.where[unit.key] = where;
    recompute_seconds_[unit.key.second] = recomputed(unit.key.second);
  }

  // What is streamed but, the link being needed for other things by now, better recomputed.
  void recompute_instead() {
    for (size_t g = 0; g < next_.size(); ++g) {
      const Group& group = space_.groups[g];
      if (group.choices.back() != Where::recompute) continue;
      for (size_t u = next_[g]; u-- > 0;) {
        const PlaceUnit& unit = order_[g][u];
        if (placement_.where.at(unit.key) != Where::host) continue;
        if (seconds_of(after(unit, Where::recompute)) >= seconds_of(loads_)) break;
        move(unit, Where::recompute);
      }
    }
  }

  // A streamed activation leaves after its forward use and comes back for its backward use, in
  // every micro-batch; parameters come for both passes and the update; gradients are summed in
  // place. What takes longer than the layers that its slots let it run ahead of stalls them.
  // `sign`: -1 takes the copies away again.
  void add_copies(const PlaceUnit& unit, Loads& loads, double sign) const {
    const double bytes = static_cast<double>(unit.bytes);
    // Once a group; the bytes of an activation are those of all its micro-batches.
    const double in = input_.profile.copy_seconds + bytes / input_.profile.h2d_bandwidth;
    const double out = input_.profile.copy_seconds + bytes / input_.profile.d2h_bandwidth;
    const int32_t slots = placement_.slots_of(unit.key.first), layer = unit.key.second;
    const int32_t layers_above = layers_ + 1 - layer;
    const auto stall = [&](FluidPhase phase, double times, double seconds, int32_t layers) {
      const double hidden = std::min(slots, layers) * layer_seconds_[phase];
      loads[phase].compute += sign * times * std::max(0.0, seconds - hidden);
    };
    const auto fetch = [&](FluidPhase phase, double times) {
      loads[phase].h2d += sign * times * in;
      stall(phase, times, in, phase == kForward ? layer : layers_above);
    };
    if (unit.activation) {
      loads[kForward].d2h += sign * groups_ * out;
      fetch(kBackward, groups_);
    } else if (unit.key.first == "parameters") {
      fetch(kForward, groups_);
      fetch(kBackward, groups_);
    } else if (unit.key.first == "gradients") {
      fetch(kBackward, groups_ - 1);
      loads[kBackward].d2h += sign * groups_ * out;
      stall(kBackward, groups_, out, layer);
    }
    if (unit.activation) return;
    loads[update_phase()].h2d += sign * in;
    if (unit.key.first != "gradients") loads[update_phase()].d2h += sign * out;
  }

  // Time of repeating what the layer's placement leaves out.
  double recomputed(int32_t layer) {
    std::string choices;
    auto it = units_.lower_bound({"", 0});
    for (; it != units_.end(); ++it)
      if (it->second.activation && it->first.second == layer)
        choices += placement_.where.at(it->first) == Where::recompute ? 'r' : '.';
    return recompute_.layer_seconds(layer, choices, placement_);
  }

  Loads after(const PlaceUnit& unit, Where where) {
    Loads loads = loads_;
    if (where == Where::host) {
      add_copies(unit, loads, 1);
      return loads;
    }
    Where& now = placement_.where[unit.key];
    const Where before = now;
    if (before == Where::host) add_copies(unit, loads, -1);
    now = Where::recompute;
    const double seconds = recomputed(unit.key.second);
    now = before;
    loads[kBackward].compute += micro_batches_ * (seconds - recompute_seconds_[unit.key.second]);
    return loads;
  }

  int64_t device_bytes() const {
    const int32_t blocks = layers_;
    int64_t bytes = 0;
    struct Streamed {
      int64_t slot = 0;
      int32_t uses = 0;
    };
    std::map<std::pair<std::string, int>, Streamed> rings;
    for (const auto& [key, unit] : units_) {
      const Where where = placement_.where.at(key);
      if (where == Where::device) bytes += unit.bytes;
      if (where != Where::host) continue;
      const int region = unit.activation ? 1 : key.second == 0 ? 0 : key.second <= blocks ? 1 : 2;
      Streamed& ring = rings[{key.first, region}];
      ring.slot = std::max(ring.slot, unit.bytes);
      ring.uses += unit.activation || key.first == "parameters" ? 2 : 1;
    }
    for (const auto& [key, ring] : rings)
      bytes += ring.slot * std::min(ring.uses, placement_.slots_of(key.first));
    return bytes;
  }

  const SearchSpace& space_;
  const PlanInput& input_;
  Recompute& recompute_;
  double micro_batches_ = 1, groups_ = 1;
  int32_t layers_ = 0;
  double layer_seconds_[kPhases] = {};  // compute of one layer in one micro-batch
  std::map<PlaceKey, PlaceUnit> units_;
  std::vector<std::vector<PlaceUnit>> order_;  // units of each group as they move
  std::vector<size_t> next_;                   // of each group
  std::vector<Point> points_;
  Loads loads_;
  Placement placement_;
  std::vector<double> recompute_seconds_;  // by layer, of one micro-batch
};

// Every move below the smallest point before it, thinned to `count` evenly spaced ones and the
// last.
void thin(const std::vector<Point>& points, const ScheduleChoice& choice, int count,
          std::vector<Candidate>& family) {
  int64_t least = points[0].device;
  for (const Point& point : points) least = std::min(least, point.device);
  const double step = static_cast<double>(points[0].device - least) / count;
  int64_t last = points[0].device;
  for (size_t p = 1; p < points.size(); ++p) {
    if (points[p].device > static_cast<double>(last) - step && points[p].device != least) continue;
    if (points[p].device >= last) continue;
    family.push_back({points[p].placement, choice});
    last = points[p].device;
  }
}

}  // namespace

std::vector<Candidate> candidate_family(const SearchSpace& space, const Candidate& minimum,
                                        int count) {
  std::vector<Candidate> family = {{space.base, space.choice}};
  Recompute recompute(*space.input, space.choice);
  using Allowed = std::function<bool(const Group&, Where)>;
  const auto path = [&](std::initializer_list<Allowed> phases, int points) {
    Path path(space, recompute);
    for (const Allowed& allowed : phases) path.walk(allowed);
    thin(path.points(), space.choice, points, family);
    return Candidate{path.points().back().placement, space.choice};
  };
  const auto all = [](const Group&, Where) { return true; };
  const auto repeat = [](const Group&, Where where) { return where == Where::recompute; };
  const auto state = [](const Group& g, Where) { return g.kind == UnitKind::state; };
  const auto activations = [](const Group& g, Where) { return g.kind == UnitKind::activation; };
  const auto gradients = [](const Group& g, Where) { return g.kind == UnitKind::gradients; };
  // Anchors can only be streamed.
  const auto anchors = [](const Group& g, Where where) {
    return where == Where::recompute ||
           (g.kind == UnitKind::activation && g.choices.back() != Where::recompute);
  };
  // By price alone; by class, streaming or repeating activations as they are priced; by class,
  // repeating all activations; and what needs no host memory.
  path({all}, count / 5);
  path({state, activations, gradients, all}, count / 4);
  path({repeat}, count / 10);
  const Candidate end = path({state, anchors, gradients, all}, count / 4);

  // From the end of the last path to the minimum: shallower rings, then the other choices.
  Candidate now = end;
  const auto add = [&] {
    if (!(now == family.back())) family.push_back(now);
  };
  for (const UnitKind kind :
       {UnitKind::state, UnitKind::gradients, UnitKind::activation, UnitKind::parameters}) {
    for (const Group& group : space.groups)
      if (group.kind == kind) now.placement.slots[group.name] = 1;
    add();
  }
  for (const Group& group : space.groups) {
    for (const PlaceUnit& unit : group.units)
      now.placement.where[unit.key] = minimum.placement.where.at(unit.key);
    add();
  }
  if (!(now == minimum)) family.push_back(minimum);
  return family;
}

}  // namespace spillway
