#include "plan/step_model.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "graph/builder.h"
#include "graph/exchange_cost.h"
#include "graph/op_seconds.h"
#include "plan/search.h"
#include "program/uses.h"

namespace spillway {
namespace {

constexpr const char* kIterationNames[] = {"first", "middle", "last"};

Pool pool_of(const PlaceUnit& unit) {
  if (unit.activation) return Pool::activations;
  if (unit.key.first == "parameters") return Pool::parameters;
  return unit.key.first == "gradients" ? Pool::gradients : Pool::state;
}

class Modelling {
 public:
  Modelling(const PlanInput& input, int32_t group, int32_t blocks) : input_(input) {
    model_.choice.group = group;
    model_.resources = shared_resources(input.profile, input.ranks_on_node);
    place_ = {input.train->spec().rank, input.ranks_on_node};
    layers_ = input.train->get(model_.choice).graph.layers;
    blocks_ = std::min(blocks, layers_);
    model_.buckets = blocks_ + 2;
  }

  StepModel run() {
    const Schedule& train = input_.train->get(model_.choice);
    iterations_ = train.spec.micro_batches / train.choice.group;
    add_intervals();
    add_units(train);
    for (const UpdatePosition position : {UpdatePosition::end, UpdatePosition::rotated}) {
      ScheduleChoice choice = model_.choice;
      if (position == UpdatePosition::rotated)
        choice.update.assign(static_cast<size_t>(layers_) + 2, position);
      if (train.spec.ranks == 1) {
        walk(input_.train->get(choice), index_of(position), Counts::all);
        continue;
      }
      choice.gather_ahead = 0;
      choice.reduce_delay = 1;
      walk(input_.train->get(choice), index_of(position), Counts::but_made);
      choice.reduce_delay = 0;
      walk(input_.train->get(choice), index_of(position), Counts::made);
    }
    add_host_updates(train);
    add_repeated(train);
    add_fixed();
    return std::move(model_);
  }

 private:
  // Of one walk through the step: what lanes can begin to move, all else, or both.
  enum class Counts : uint8_t { all, but_made, made };

  int32_t bucket_of(int32_t layer) const {
    if (layer == 0) return 0;
    if (layer > layers_) return blocks_ + 1;
    return 1 + static_cast<int32_t>(static_cast<int64_t>(layer - 1) * blocks_ / layers_);
  }

  // Iterations of the step that stand in each of the model's three.
  int32_t iterations_in(int v) const {
    if (v == 1) return std::max(0, iterations_ - 2);
    return v == 0 || iterations_ > 1 ? 1 : 0;
  }

  void add_intervals() {
    const auto add = [&](const std::string& name, double weight) {
      model_.intervals.push_back({name, weight});
    };
    model_.backward.assign(model_.buckets, {-1, -1, -1});
    for (int v = 0; v < 3; ++v) {
      const int32_t times = iterations_in(v);
      if (times == 0) continue;
      model_.iteration_begin[v] = static_cast<int32_t>(model_.intervals.size());
      for (int32_t b = 0; b < model_.buckets; ++b)
        add(fmt::format("{} forward {}", kIterationNames[v], b), times);
      for (int32_t b = model_.buckets - 1; b >= 0; --b) {
        model_.backward[b][v] = static_cast<int32_t>(model_.intervals.size());
        add(fmt::format("{} backward {}", kIterationNames[v], b), times);
      }
    }
    model_.update_begin = static_cast<int32_t>(model_.intervals.size());
    for (int32_t b = 0; b < model_.buckets; ++b) add(fmt::format("update {}", b), 1);
    add("tail", 1);
    model_.exchanges.needed.assign(model_.intervals.size(), 0);
    model_.exchanges.made = model_.exchanges.needed;
    model_.exchanged.fill(model_.exchanges);
    model_.updates.resize(model_.buckets);
  }

  int32_t interval(int v, StepPhase phase, int32_t bucket) const {
    if (phase == StepPhase::update) return model_.update_begin + bucket;
    return phase == StepPhase::forward ? model_.iteration_begin[v] + bucket
                                       : model_.backward[bucket][v];
  }

  void add_units(const Schedule& train) {
    const Placement pins = placement_of_pins(input_);
    std::map<std::pair<std::string, int32_t>, int32_t> index;
    for (const PlaceUnit& unit : place_units(train)) {
      const int32_t bucket = bucket_of(unit.key.second);
      const auto [it, fresh] =
          index.try_emplace({unit.key.first, bucket}, static_cast<int32_t>(model_.units.size()));
      if (fresh) {
        BucketUnit u;
        u.name = unit.key.first;
        u.bucket = bucket;
        u.pool = pool_of(unit);
        u.can_stream = input_.offload == Mode::automatic;
        u.can_recompute = input_.recompute == Mode::automatic && unit.recomputable;
        model_.units.push_back(std::move(u));
      }
      BucketUnit& u = model_.units[it->second];
      u.keys.push_back(unit.key);
      u.bytes += static_cast<double>(unit.bytes);
      unit_of_[unit.key] = it->second;
      all_host_.where[unit.key] = Where::host;
      if (const auto pin = pins.where.find(unit.key); pin != pins.where.end())
        u.pinned[static_cast<int>(pin->second)] += 1;
    }
    for (BucketUnit& u : model_.units) {
      for (double& pinned : u.pinned) pinned /= static_cast<double>(u.keys.size());
      u.can_stream |= u.pinned[static_cast<int>(Where::host)] > 0;
      u.can_recompute |= u.pinned[static_cast<int>(Where::recompute)] > 0;
    }
  }

  double seconds_of(const Node& node, const Graph& g) const {
    std::vector<TensorType> in;
    for (const Operand& o : node.in) {
      const Tensor& t = g.tensors[o.tensor];
      in.push_back({t.dtype, o.count < 0 ? t.dims : Dims(o.count)});
    }
    return op_seconds(node.op, node.attrs, in, input_.profile, input_.bf16);
  }

  // How often stage [begin, begin + trip) of a step's iterations counts in the model's v-th.
  double share(int v, int32_t begin, int32_t trip) const {
    if (v == 0) return begin == 0 ? 1 : 0;
    const int32_t last = iterations_ - 1;
    if (v == 2) return last > 0 && begin + trip > last ? 1 : 0;
    const int32_t inside = std::min(begin + trip, last) - std::max(begin, 1);
    return inside <= 0 ? 0 : static_cast<double>(inside) / (iterations_ - 2);
  }

  // Compute, exchanges and what all units would stream, of the order that `position` stands for.
  void walk(const Schedule& train, int position, Counts counts) {
    const Sequencer sequencer(train, all_host_);
    Rings rings;
    const std::vector<StagePlan> stages = plan_stages(train, sequencer, rings);
    if (counts != Counts::made) add_homes(train, stages, position);
    int32_t iteration = 0;
    for (size_t s = 0; s < stages.size(); ++s) {
      const Stage& stage = train.stages[s];
      const bool update = stage.name == "update";
      for (int v = 0; v < 3; ++v) {
        const double weight = update ? (v == 0 ? 1 : 0) : share(v, iteration, stage.trip);
        if (weight > 0) walk_stage(train, stages[s], rings, position, counts, v, weight, update);
      }
      if (!update) iteration += stage.trip;
    }
  }

  // What outlives a step has a home; of the rest, what is ever fetched or written back.
  void add_homes(const Schedule& train, const std::vector<StagePlan>& stages, int position) {
    const std::vector<Tensor>& tensors = train.graph.tensors;
    std::set<std::pair<TensorId, int32_t>> homes;
    for (size_t t = 0; t < tensors.size(); ++t)
      if (const Role role = tensors[t].role;
          role == Role::param || role == Role::master || role == Role::moment)
        homes.insert({static_cast<TensorId>(t), 0});
    for (const StagePlan& stage : stages)
      for (const Use& use : stage.uses)
        for (const auto& [tensor, piece] : use.pieces)
          if (!piece.fetch.empty() || !piece.written.empty()) homes.insert({tensor, use.micro});
    for (const auto& [id, micro] : homes)
      if (const auto unit = unit_of_.find({tensors[id].place, tensors[id].layer});
          unit != unit_of_.end())
        model_.units[unit->second].home_bytes[position] += static_cast<double>(tensors[id].bytes());
  }

  void walk_stage(const Schedule& train, const StagePlan& plan, const Rings& rings, int position,
                  Counts counts, int v, double weight, bool update) {
    const Graph& g = train.graph;
    const bool end = position == index_of(UpdatePosition::end);
    const bool last = v == (iterations_ > 1 ? 2 : 0);
    std::vector<int32_t> at(plan.items.size());
    std::vector<std::map<int32_t, double>> updates(model_.buckets);
    int32_t current = update ? model_.update_begin : interval(v, StepPhase::forward, 0);
    for (size_t p = 0; p < plan.items.size(); ++p) {
      const Item& item = plan.items[p];
      const Node& node = *item.node;
      const int32_t bucket = bucket_of(node.layer);
      const bool pass = node.pass == Pass::forward || node.pass == Pass::backward;
      if (node.kind == NodeKind::op && (update || pass))
        current = interval(v, update ? StepPhase::update : item.phase, bucket);
      at[p] = current;
      // Gathers of the passes are needed, other exchanges are made.
      const bool made = node.kind == NodeKind::exchange && !pass;
      if (counts == (made ? Counts::but_made : Counts::made)) continue;
      if (end && node.kind == NodeKind::op && pass) note_limits(node, g, v == 0, last, current);
      if (node.kind == NodeKind::op) {
        const double seconds = weight * seconds_of(node, g);
        if (node.pass == Pass::update && node.unit != kNone)
          updates[bucket][current] += seconds;
        else if (end)
          model_.intervals[current].compute += seconds;
      } else if (node.kind == NodeKind::exchange && end) {
        const ExchangeBytes bytes = exchange_bytes(node, g, place_);
        const auto add = [&](Exchanges& exchanges, double amount) {
          if (pass)
            exchanges.needed[interval(v, item.phase, bucket)] += weight * amount;
          else
            exchanges.made[current] += weight * amount;
        };
        add(model_.exchanges, exchange_seconds(bytes, input_.profile, model_.resources));
        for (const Traffic kind : {Traffic::intra_node, Traffic::network})
          add(model_.exchanged[static_cast<size_t>(kind)], bytes.of(kind));
        if (!update || node.unit == kNone) continue;
        BucketUpdate& of = model_.updates[bucket];
        of.gather_seconds += exchange_seconds(bytes, input_.profile, model_.resources);
        for (const Traffic kind : {Traffic::intra_node, Traffic::network})
          of.gather_bytes[static_cast<size_t>(kind)] += bytes.of(kind);
      }
    }
    for (int32_t b = 0; b < model_.buckets; ++b)
      for (const auto& [k, seconds] : updates[b])
        model_.updates[b].compute[position].push_back({k, seconds});
    for (const Use& use : plan.uses) {
      const std::string& ring = rings.all[use.ring].name;
      add_use(g, use, ring, at, position, counts, weight);
      if (end && !update) add_use(g, use, ring, at, index_of(UpdatePosition::host), counts, weight);
    }
  }

  // Where a pass first reads what an update makes, and completes what it reads.
  void note_limits(const Node& node, const Graph& g, bool first, bool last, int32_t current) {
    if (first && node.pass == Pass::forward)
      for (const Operand& o : node.in)
        if (const Tensor& t = g.tensors[o.tensor];
            t.role == Role::param || t.role == Role::gathered)
          read_.try_emplace(t.layer, current);
    if (last && node.pass == Pass::backward)
      for (const Operand& o : node.out)
        if (const Tensor& t = g.tensors[o.tensor];
            t.role == Role::grad || t.role == Role::partial_grad)
          complete_[t.layer] = current;
  }

  // What updates ask of the host, wherever their gradients and parameters are.
  void add_host_updates(const Schedule& train) {
    const Graph& g = train.graph;
    const auto bytes = [&](const Operand& o) {
      const Tensor& t = g.tensors[o.tensor];
      return static_cast<double>((o.count < 0 ? t.dims.count() : o.count) * size_of(t.dtype));
    };
    for (const Stage& stage : train.stages) {
      if (stage.name != "update") continue;
      for (const Visit& visit : stage.visits) {
        const Node& node = g.nodes[visit.node];
        if (node.kind != NodeKind::op || node.unit == kNone) continue;
        BucketUpdate& update = model_.updates[bucket_of(node.layer)];
        std::vector<TensorType> in;
        for (const Operand& o : node.in) {
          const Tensor& t = g.tensors[o.tensor];
          in.push_back({t.dtype, o.count < 0 ? t.dims : Dims(o.count)});
        }
        update.cpu_bytes += op_def(node.op).cost(node.attrs, in).bytes;
        if (g.tensors[node.in[0].tensor].role == Role::grad)
          update.gradient_bytes += bytes(node.in[0]);
        for (const Operand& o : node.out)
          if (g.tensors[o.tensor].role == Role::param) update.parameter_bytes += bytes(o);
      }
    }
    const std::map<int32_t, UpdatePosition> pins = updates_of_pins(input_);
    std::vector<double> layers(model_.updates.size());
    for (int32_t layer = 0; layer <= layers_ + 1; ++layer) {
      BucketUpdate& update = model_.updates[bucket_of(layer)];
      layers[bucket_of(layer)] += 1;
      if (const auto pin = pins.find(layer); pin != pins.end())
        update.pinned[index_of(pin->second)] += 1;
      if (const auto read = read_.find(layer); read != read_.end())
        update.needed = std::max(update.needed, read->second);
      if (const auto complete = complete_.find(layer); complete != complete_.end())
        update.complete =
            update.complete < 0 ? complete->second : std::min(update.complete, complete->second);
    }
    for (size_t b = 0; b < layers.size(); ++b) {
      BucketUpdate& update = model_.updates[b];
      for (double& pinned : update.pinned) pinned /= layers[b];
      update.on_host = updates_on_host(input_.offload, input_.profile)
                           ? 1
                           : update.pinned[index_of(UpdatePosition::host)] +
                                 update.pinned[index_of(UpdatePosition::host_rotated)];
    }
    for (BucketUnit& unit : model_.units)
      unit.home_bytes[streaming_of(index_of(UpdatePosition::host))] =
          unit.home_bytes[index_of(UpdatePosition::end)];
  }

  void add_use(const Graph& g, const Use& use, const std::string& ring_name,
               const std::vector<int32_t>& at, int position, Counts counts, double weight) {
    const Tensor& first = g.tensors[use.pieces.begin()->first];
    const auto found = unit_of_.find({first.place, first.layer});
    if (found == unit_of_.end()) return;  // homeless
    BucketUnit& unit = model_.units[found->second];
    if (unit.pool == Pool::activations && position != 0) return;
    if (unit.pool == Pool::state && position == index_of(UpdatePosition::host)) return;
    Streaming& streaming = unit.streaming[position];
    SlotNeed& slot = slot_in(streaming, ring_index(ring_name, unit.pool));
    slot.bytes = std::max(slot.bytes, static_cast<double>(use.slot_bytes));
    for (const auto& [tensor, piece] : use.pieces) {
      const int64_t size = size_of(g.tensors[tensor].dtype);
      const auto add = [&](int32_t k, const RangeSet& ranges, bool in) {
        if (ranges.empty()) return;
        Flow& flow = flow_at(streaming, k);
        for (const ElementRange& r : ranges.ranges()) {
          const int64_t bytes = size * r.count(), begin = piece.offset_of(r, size);
          (in ? flow.in_bytes : flow.out_bytes) += weight * static_cast<double>(bytes);
          (in ? flow.in_copies : flow.out_copies) += weight;
          slot.copies.insert({begin + bytes, begin});
        }
      };
      if (counts != Counts::made) add(at[use.first], piece.fetch, true);
      if (counts != Counts::but_made && !piece.written.empty())
        add(at[piece.last_write], piece.written, false);
    }
  }

  static SlotNeed& slot_in(Streaming& streaming, int32_t ring) {
    for (SlotNeed& need : streaming.slots)
      if (need.ring == ring) return need;
    SlotNeed need;
    need.ring = ring;
    return streaming.slots.emplace_back(std::move(need));
  }

  static Flow& flow_at(Streaming& streaming, int32_t k) {
    for (Flow& flow : streaming.flows)
      if (flow.interval == k) return flow;
    Flow flow;
    flow.interval = k;
    return streaming.flows.emplace_back(flow);
  }

  int32_t ring_index(const std::string& name, Pool pool) {
    for (size_t r = 0; r < model_.rings.size(); ++r)
      if (model_.rings[r].name == name) return static_cast<int32_t>(r);
    model_.rings.push_back({name, pool});
    return static_cast<int32_t>(model_.rings.size()) - 1;
  }

  // Nodes that recomputation repeats, closed under what they read that is never kept.
  void add_repeated(const Schedule& train) {
    const Graph& g = train.graph;
    const Sequencer sequencer(train, all_host_);
    const auto kept = [&](TensorId t) { return sequencer.saved(t); };
    std::map<TensorId, std::pair<int32_t, int32_t>> producer;  // layer, position in it
    std::vector<std::vector<NodeId>> nodes(static_cast<size_t>(layers_) + 2);
    for (size_t n = 0; n < g.nodes.size(); ++n) {
      const Node& node = g.nodes[n];
      if (node.pass != Pass::forward || node.kind != NodeKind::op) continue;
      for (const Operand& o : node.out)
        producer[o.tensor] = {node.layer, static_cast<int32_t>(nodes[node.layer].size())};
      nodes[node.layer].push_back(static_cast<NodeId>(n));
    }
    std::map<std::pair<int32_t, int32_t>, int32_t> index;  // bucket, position in its layers
    for (int32_t layer = 0; layer <= layers_ + 1; ++layer) {
      const int32_t bucket = bucket_of(layer);
      std::set<int32_t> wanted;
      std::vector<std::set<int32_t>> units(nodes[layer].size()), needed(nodes[layer].size());
      for (int32_t j = static_cast<int32_t>(nodes[layer].size()) - 1; j >= 0; --j) {
        const Node& node = g.nodes[nodes[layer][j]];
        for (const Operand& o : node.out) {
          const Tensor& t = g.tensors[o.tensor];
          if (!kept(o.tensor) || t.anchor) continue;
          const int32_t unit = unit_of_.at({t.place, t.layer});
          if (!model_.units[unit].can_recompute) continue;
          units[j].insert(unit);
          // Without this output the node reads more: a norm the sum that it would have found.
          const auto without = [&](TensorId id) { return id != o.tensor && kept(id); };
          for (const Operand& in : recompute_node(node, without).in)
            if (const auto made = producer.find(in.tensor);
                made != producer.end() && made->second.first == layer && !kept(in.tensor)) {
              wanted.insert(made->second.second);
              units[made->second.second].insert(unit);
            }
        }
        if (!units[j].empty()) wanted.insert(j);
        if (!wanted.contains(j)) continue;
        for (const Operand& o : recompute_node(node, kept).in) {
          const auto made = producer.find(o.tensor);
          if (made == producer.end() || made->second.first != layer || kept(o.tensor)) continue;
          wanted.insert(made->second.second);
          needed[j].insert(made->second.second);
        }
      }
      for (const int32_t j : wanted) {  // ascending: what is needed comes first
        const auto [it, fresh] =
            index.try_emplace({bucket, j}, static_cast<int32_t>(model_.repeated.size()));
        if (fresh) {
          RepeatedNode node;
          node.bucket = bucket;
          node.units.assign(units[j].begin(), units[j].end());
          for (const int32_t other : needed[j]) node.needed.push_back(index.at({bucket, other}));
          model_.repeated.push_back(std::move(node));
        }
        model_.repeated[it->second].seconds +=
            model_.choice.group * seconds_of(recompute_node(g.nodes[nodes[layer][j]], kept), g);
      }
    }
  }

  // What no placement changes: transients and workspaces of everything resident, rings of what has
  // no home at one slot each, inputs, scalars.
  void add_fixed() {
    PlanInput bare = input_;
    bare.snapshots = false;
    ScheduleChoice choice = model_.choice;
    choice.reduce_delay = choice.gather_ahead = 0;
    Placement resident;
    resident.slots["comm_staging"] = 1;
    const MemoryUse use = memory_of(bare, resident, choice);
    std::set<std::string> places;
    for (const BucketUnit& unit : model_.units) places.insert(unit.name);
    model_.fixed_device_bytes = static_cast<double>(use.device.peak);
    for (const auto& [place, bytes] : use.device.by_class)
      if (places.contains(place)) model_.fixed_device_bytes -= static_cast<double>(bytes);
    model_.fixed_host_bytes = static_cast<double>(use.host.peak);
  }

  const PlanInput& input_;
  RankPlace place_;
  int32_t layers_ = 0, blocks_ = 0, iterations_ = 1;
  StepModel model_;
  std::map<PlaceKey, int32_t> unit_of_;
  Placement all_host_;
  std::map<int32_t, int32_t> read_, complete_;  // intervals, by layer
};

}  // namespace

int32_t most_apart(const SlotCopies& copies) {
  int32_t count = 0;
  int64_t free = 0;
  for (const auto& [end, begin] : copies) {  // the one that ends first is as good as any
    if (begin < free) continue;
    free = end;
    ++count;
  }
  return count;
}

double StepModel::bytes_exchanged(Traffic kind) const {
  const Exchanges& bytes = exchanged[static_cast<size_t>(kind)];
  return std::accumulate(bytes.needed.begin(), bytes.needed.end(), 0.0) +
         std::accumulate(bytes.made.begin(), bytes.made.end(), 0.0);
}

std::vector<const SharedResource*> contended(const StepModel& model, bool in, bool out) {
  constexpr double kMuch = 1.125;
  std::vector<const SharedResource*> result;
  for (const SharedResource& r : model.resources) {
    const auto asked = [&](Traffic kind, bool any) {
      return any ? r.of(kind) * rate_alone(model.resources, kind) : 0;
    };
    const double copies = asked(Traffic::h2d, in) + asked(Traffic::d2h, out);
    double exchanges = 0;
    for (const Traffic kind : {Traffic::intra_node, Traffic::network})
      exchanges += asked(kind, model.bytes_exchanged(kind) > 0);
    exchanges = std::min(exchanges, r.bytes_per_second);
    if (copies > 0 && copies + exchanges > kMuch * r.bytes_per_second) result.push_back(&r);
  }
  return result;
}

StepModel step_model(const PlanInput& input, int32_t group, int32_t blocks) {
  return Modelling(input, group, blocks).run();
}

}  // namespace spillway
