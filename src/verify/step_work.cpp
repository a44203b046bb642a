#include "verify/step_work.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "graph/builder.h"
#include "graph/exchange_cost.h"
#include "graph/op_seconds.h"
#include "verify/stays.h"

namespace spillway::verify_detail {
namespace {

class Reading {
 public:
  Reading(const CertificateInput& input, int32_t group, int32_t blocks) : input_(input) {
    work_.resources = shared_resources(input.profile, input.ranks_on_node);
    at_end_.group = group;
    at_end_.zero = input.zero;
    const Schedule& train = input.train->get(at_end_);
    layers_ = train.graph.layers;
    if (blocks < 1) bad_input("a certificate of {} buckets of block layers", blocks);
    blocks_ = std::min(blocks, layers_);
    work_.buckets = blocks_ + 2;
    // A CPU's updates would take the processors that compute.
    work_.updates_on_host = input.offload == Mode::automatic && input.profile.kind != "cpu";
    iterations_ = train.spec.micro_batches / group;
    name_spans();
    gather_choices(train);
    for (const UpdateTime position : {UpdateTime::end, UpdateTime::rotated}) {
      // Whenever a plan gathers and sums, it needs no bytes later than `latest` does, and makes
      // none earlier than `earliest`.
      ScheduleChoice latest = at_end_;
      latest.gather_ahead = 0;
      latest.reduce_delay = 1;
      if (position == UpdateTime::rotated)
        latest.update.assign(static_cast<size_t>(layers_) + 2, UpdatePosition::rotated);
      ScheduleChoice earliest = latest;
      earliest.reduce_delay = 0;
      follow(input.train->get(latest), position, false);
      follow(input.train->get(earliest), position, true);
    }
    gather_updates(train);
    gather_repeats(train);
    std::tie(work_.least_device, work_.least_host) = least_bytes(input, group);
  }

  StepWork take() { return std::move(work_); }

 private:
  int32_t bucket(int32_t layer) const {
    if (layer == 0 || layer > layers_) return layer == 0 ? 0 : blocks_ + 1;
    return 1 + static_cast<int32_t>(int64_t{layer - 1} * blocks_ / layers_);
  }

  void name_spans() {
    const auto add = [&](const std::string& name, double times) {
      work_.spans.push_back({name, times});
      return static_cast<int32_t>(work_.spans.size()) - 1;
    };
    work_.backward.assign(static_cast<size_t>(work_.buckets), {-1, -1, -1});
    const std::array<int32_t, 3> times = {1, std::max(0, iterations_ - 2), iterations_ > 1 ? 1 : 0};
    constexpr const char* kNames[] = {"first", "middle", "last"};
    for (int v = 0; v < 3; ++v) {
      if (times[v] == 0) continue;
      work_.begins[v] = static_cast<int32_t>(work_.spans.size());
      for (int32_t b = 0; b < work_.buckets; ++b)
        add(fmt::format("{} forward {}", kNames[v], b), times[v]);
      for (int32_t b = work_.buckets; b-- > 0;)
        work_.backward[b][v] = add(fmt::format("{} backward {}", kNames[v], b), times[v]);
    }
    work_.updates = static_cast<int32_t>(work_.spans.size());
    for (int32_t b = 0; b < work_.buckets; ++b) add(fmt::format("update {}", b), 1);
    add("tail", 1);
    work_.gathers.assign(work_.spans.size(), 0);
    work_.sums = work_.gathers;
    work_.gathered.fill(work_.gathers);
    work_.summed.fill(work_.gathers);
    work_.update.resize(static_cast<size_t>(work_.buckets));
  }

  int32_t span(int v, Work work, int32_t b) const {
    switch (work) {
      case Work::forward:
        return work_.begins[v] + b;
      case Work::backward:
        return work_.backward[b][v];
      case Work::update:
        return work_.updates + b;
    }
    return -1;
  }

  // ---- what is chosen -------------------------------------------------------------------------

  static StreamPool pool_of(const Tensor& t) {
    if (t.role == Role::activation) return StreamPool::activations;
    if (t.place == "parameters") return StreamPool::parameters;
    return t.place == "gradients" ? StreamPool::gradients : StreamPool::state;
  }

  void gather_choices(const Schedule& train) {
    const Storage storage(train);
    const Graph& g = train.graph;
    struct OneLayer {
      double bytes = 0;
      StreamPool pool = StreamPool::activations;
      bool recomputes = true;
    };
    std::map<PlaceKey, OneLayer> units;
    for (size_t t = 0; t < g.tensors.size(); ++t) {
      const Tensor& tensor = g.tensors[t];
      if (!storage.chosen(static_cast<TensorId>(t))) continue;
      OneLayer& unit = units[{tensor.place, tensor.layer}];
      unit.pool = pool_of(tensor);
      const bool activation = unit.pool == StreamPool::activations;
      unit.bytes += static_cast<double>(tensor.bytes()) * (activation ? train.choice.group : 1);
      unit.recomputes = unit.recomputes && activation && !tensor.anchor;
    }
    for (const auto& [key, unit] : units) {
      const int32_t b = bucket(key.second);
      const auto [it, fresh] = choice_of_.try_emplace({key.first, b}, work_.choices.size());
      if (fresh) {
        Choice& c = work_.choices.emplace_back();
        c.name = key.first;
        c.bucket = b;
        c.pool = unit.pool;
        c.streams = input_.offload == Mode::automatic;
        c.recomputes = unit.recomputes && input_.recompute == Mode::automatic;
      }
      Choice& c = work_.choices[it->second];
      ++c.layers;
      c.bytes += unit.bytes;
      const auto pin = input_.pins.find(key);
      if (pin != input_.pins.end()) c.pinned[static_cast<size_t>(pin->second)] += 1;
    }
    for (Choice& c : work_.choices) {
      c.streams = c.streams || c.pinned[static_cast<size_t>(Where::host)] > 0;
      c.recomputes = c.recomputes || c.pinned[static_cast<size_t>(Where::recompute)] > 0;
    }
  }

  Choice* choice(const Tensor& t) {
    const auto it = choice_of_.find({t.place, bucket(t.layer)});
    return it == choice_of_.end() ? nullptr : &work_.choices[it->second];
  }

  // ---- time -----------------------------------------------------------------------------------

  double seconds(const Node& node, const Graph& g) const {
    std::vector<TensorType> types;
    for (const Operand& o : node.in) {
      const Tensor& t = g.tensors[o.tensor];
      types.push_back({t.dtype, o.count < 0 ? t.dims : Dims(o.count)});
    }
    return op_seconds(node.op, node.attrs, types, input_.profile, input_.bf16);
  }

  // ---- updates --------------------------------------------------------------------------------

  // When the passes are done with gradients and want parameters, by layer.
  void note_pass(const Node& node, const Graph& g, int v, int32_t span) {
    const bool last = v == 2 || iterations_ == 1;
    if (v == 0 && node.pass == Pass::forward)
      for (const Operand& o : node.in)
        if (const Role role = g.tensors[o.tensor].role;
            role == Role::param || role == Role::gathered)
          wanted_.try_emplace(g.tensors[o.tensor].layer, span);
    if (last && node.pass == Pass::backward)
      for (const Operand& o : node.out)
        if (const Role role = g.tensors[o.tensor].role;
            role == Role::grad || role == Role::partial_grad)
          ready_[g.tensors[o.tensor].layer] = span;
  }

  void gather_updates(const Schedule& train) {
    const Graph& g = train.graph;
    for (const Node& node : g.nodes) {
      if (node.kind != NodeKind::op || node.pass != Pass::update || node.unit == kNone) continue;
      Update& update = work_.update[bucket(node.layer)];
      std::vector<TensorType> types;
      const auto count = [&](const Operand& o) {
        return o.count < 0 ? g.tensors[o.tensor].dims.count() : o.count;
      };
      const auto bytes = [&](const Operand& o, Role role) {
        const Tensor& t = g.tensors[o.tensor];
        return t.role == role ? static_cast<double>(count(o) * size_of(t.dtype)) : 0.0;
      };
      for (const Operand& o : node.in) types.push_back({g.tensors[o.tensor].dtype, Dims(count(o))});
      update.work += op_def(node.op).cost(node.attrs, types).bytes;
      update.gradients += bytes(node.in.front(), Role::grad);
      for (const Operand& o : node.out) update.parameters += bytes(o, Role::param);
    }
    for (int32_t layer = 0; layer < layers_ + 2; ++layer) {
      Update& update = work_.update[bucket(layer)];
      ++update.layers;
      if (const auto pin = input_.updates.find(layer); pin != input_.updates.end())
        update.pinned[static_cast<size_t>(pin->second)] += 1;
      if (const auto at = wanted_.find(layer); at != wanted_.end())
        update.wanted = std::max(update.wanted, at->second);
      if (const auto at = ready_.find(layer); at != ready_.end())
        update.ready = update.ready < 0 ? at->second : std::min(update.ready, at->second);
    }
    for (Choice& c : work_.choices) c.streamed[2].home = c.streamed[0].home;
  }

  // A gather is needed by the end of its span, a sum can begin with it.
  void count_exchange(const Node& node, const Schedule& schedule, bool gather, int32_t span,
                      double part) {
    const RankPlace place{schedule.spec.rank, input_.ranks_on_node};
    const ExchangeBytes bytes = exchange_bytes(node, schedule.graph, place);
    (gather ? work_.gathers : work_.sums)[span] +=
        part * exchange_seconds(bytes, input_.profile, work_.resources);
    for (int kind = 0; kind < kTraffics; ++kind)
      (gather ? work_.gathered : work_.summed)[kind][span] +=
          part * bytes.of(static_cast<Traffic>(kind));
  }

  void count_gather(const Node& node, const Schedule& schedule, Update& update) const {
    const RankPlace place{schedule.spec.rank, input_.ranks_on_node};
    const ExchangeBytes bytes = exchange_bytes(node, schedule.graph, place);
    update.gathers += exchange_seconds(bytes, input_.profile, work_.resources);
    for (int kind = 0; kind < kTraffics; ++kind)
      update.gathered[kind] += bytes.of(static_cast<Traffic>(kind));
  }

  // How much of the v-th iteration of the three is made of iterations [from, from + trip).
  double share(int v, int32_t from, int32_t trip) const {
    const int32_t to = from + trip, last = iterations_ - 1;
    if (v == 0) return from == 0 ? 1 : 0;
    if (v == 2) return last > 0 && to == iterations_ ? 1 : 0;
    const int32_t between = std::min(to, last) - std::max(from, 1);
    return between > 0 ? static_cast<double>(between) / (iterations_ - 2) : 0;
  }

  // `makes`: counts what is ready to be sent or copied away; otherwise everything else.
  void follow(const Schedule& schedule, UpdateTime position, bool makes) {
    const Storage storage(schedule);
    const auto stays = stays_of(schedule, storage);
    if (!makes) find_homes(schedule, storage, stays, position);
    int32_t iteration = 0;
    for (size_t s = 0; s < schedule.stages.size(); ++s) {
      const Stage& stage = schedule.stages[s];
      if (stage.name == "update") {
        follow_stage(schedule, stage, stays[s], position, makes, 0, 1, true);
        continue;
      }
      for (int v = 0; v < 3; ++v)
        if (const double part = share(v, iteration, stage.trip); part > 0)
          follow_stage(schedule, stage, stays[s], position, makes, v, part, false);
      iteration += stage.trip;
    }
  }

  // Gradients and activations that no copy ever moves have no bytes on the host.
  void find_homes(const Schedule& schedule, const Storage& storage,
                  const std::vector<std::vector<Stay>>& stays, UpdateTime position) {
    const std::vector<Tensor>& tensors = schedule.graph.tensors;
    std::set<std::pair<TensorId, int32_t>> moved;
    for (const std::vector<Stay>& stage : stays)
      for (const Stay& stay : stage)
        for (const auto& [tensor, part] : stay.parts)
          if (!part.fetched.empty() || !part.returned.empty()) moved.emplace(tensor, stay.micro);
    const auto count = [&](const Tensor& t) {
      if (Choice* c = choice(t))
        c->streamed[static_cast<size_t>(position)].home += static_cast<double>(t.bytes());
    };
    for (const auto& [tensor, micro] : moved)
      if (const Role role = tensors[tensor].role; role == Role::grad || role == Role::activation)
        count(tensors[tensor]);
    for (size_t t = 0; t < tensors.size(); ++t)
      if (const Role role = tensors[t].role; storage.chosen(static_cast<TensorId>(t)) &&
                                             role != Role::grad && role != Role::activation)
        count(tensors[t]);
  }

  void follow_stage(const Schedule& schedule, const Stage& stage, const std::vector<Stay>& stays,
                    UpdateTime position, bool makes, int v, double part, bool updates) {
    const Graph& g = schedule.graph;
    std::vector<int32_t> at;  // the span of each visit
    int32_t now = updates ? work_.updates : work_.begins[v];
    for (const Visit& visit : stage.visits) {
      const Node& node = g.nodes[visit.node];
      const int32_t b = bucket(node.layer);
      const bool pass = node.pass == Pass::forward || node.pass == Pass::backward;
      if (node.kind == NodeKind::op && (pass || updates))
        now = span(v, updates ? Work::update : work_of(node.pass), b);
      at.push_back(now);
      if (makes != (node.kind == NodeKind::exchange && !pass)) continue;
      if (node.kind == NodeKind::op && pass && position == UpdateTime::end)
        note_pass(node, g, v, now);
      if (node.kind == NodeKind::op && node.pass == Pass::update && node.unit != kNone) {
        work_.update[b].seconds[static_cast<size_t>(position)][now] += part * seconds(node, g);
      } else if (position == UpdateTime::rotated) {
        continue;  // the rest is the same
      } else if (node.kind == NodeKind::op) {
        work_.spans[now].seconds += part * seconds(node, g);
      } else if (node.kind == NodeKind::exchange) {
        count_exchange(node, schedule, pass, pass ? span(v, work_of(node.pass), b) : now, part);
        if (updates && node.unit != kNone) count_gather(node, schedule, work_.update[b]);
      }
    }
    for (const Stay& stay : stays) {
      count_copies(g, stay, at, position, makes, part);
      if (!updates && position == UpdateTime::end)
        count_copies(g, stay, at, UpdateTime::on_host, makes, part);
    }
  }

  void count_copies(const Graph& g, const Stay& stay, const std::vector<int32_t>& at,
                    UpdateTime position, bool makes, double part) {
    Choice* c = choice(g.tensors[stay.parts.begin()->first]);
    if (c == nullptr || (c->pool == StreamPool::activations && position != UpdateTime::end) ||
        (c->pool == StreamPool::state && position == UpdateTime::on_host))
      return;
    Streamed& streamed = c->streamed[static_cast<size_t>(position)];
    for (const auto& [tensor, p] : stay.parts) {
      const double size = part * static_cast<double>(size_of(g.tensors[tensor].dtype));
      if (!makes && !p.fetched.empty()) {
        Moved& moved = streamed.by_span[at[stay.first]];
        moved.in += size * static_cast<double>(elements(p.fetched));
        moved.in_copies += part * static_cast<double>(p.fetched.size());
      }
      if (makes && !p.returned.empty()) {
        Moved& moved = streamed.by_span[at[p.last_write]];
        moved.out += size * static_cast<double>(elements(p.returned));
        moved.out_copies += part * static_cast<double>(p.returned.size());
      }
    }
    Slot& slot = streamed.slots[stay.ring];
    slot.bytes = std::max(slot.bytes, static_cast<double>(stay.slot_bytes));
    fill(g, stay, slot);
    const std::pair<std::string, StreamPool> ring = {stay.ring, c->pool};
    if (std::find(work_.rings.begin(), work_.rings.end(), ring) == work_.rings.end())
      work_.rings.push_back(ring);
  }

  // Held spans stand one after the other, aligned; what is copied of one has its place in it.
  static void fill(const Graph& g, const Stay& stay, Slot& slot) {
    int64_t at = 0;
    for (const auto& [tensor, p] : stay.parts) {
      const int64_t size = size_of(g.tensors[tensor].dtype);
      for (const auto& [begin, end] : p.held) {
        for (const Spans* copied : {&p.fetched, &p.returned})
          for (const auto& [from, to] : *copied)
            if (from >= begin && from < end)
              slot.filled.insert({at + (from - begin) * size, at + (to - begin) * size});
        at += aligned((end - begin) * size);
      }
    }
  }

  // ---- recomputation --------------------------------------------------------------------------

  // Of each layer, the forward nodes that make what can be recomputed, and those that make what
  // they read and nobody keeps. Numbered by layer and order as they first appear in a bucket.
  void gather_repeats(const Schedule& train) {
    const Storage storage(train);
    const Graph& g = train.graph;
    const auto kept = [&](TensorId t) { return storage.saved(t); };
    std::vector<std::vector<const Node*>> of_layer(static_cast<size_t>(layers_) + 2);
    for (const Node& node : g.nodes)
      if (node.pass == Pass::forward && node.kind == NodeKind::op)
        of_layer[node.layer].push_back(&node);
    std::map<std::pair<int32_t, size_t>, int32_t> number;  // by bucket and place in the layer
    for (int32_t layer = 0; layer < layers_ + 2; ++layer) {
      const std::vector<const Node*>& nodes = of_layer[layer];
      std::map<TensorId, size_t> maker;
      for (size_t n = 0; n < nodes.size(); ++n)
        for (const Operand& o : nodes[n]->out) maker[o.tensor] = n;
      std::vector<std::set<int32_t>> choices(nodes.size()), before(nodes.size());
      std::vector<bool> repeats(nodes.size(), false);
      for (size_t n = nodes.size(); n-- > 0;) {
        for (const Operand& o : nodes[n]->out) {
          const Tensor& t = g.tensors[o.tensor];
          if (!kept(o.tensor) || t.anchor || !choice(t)->recomputes) continue;
          const auto choosing = static_cast<int32_t>(choice_of_.at({t.place, bucket(t.layer)}));
          choices[n].insert(choosing);
          // What it reads if that output is not there to start from.
          for (const Operand& read : recompute_node(*nodes[n], [&](TensorId id) {
                                       return kept(id) && id != o.tensor;
                                     }).in)
            if (const auto made = maker.find(read.tensor);
                made != maker.end() && !kept(read.tensor)) {
              choices[made->second].insert(choosing);
              repeats[made->second] = true;
            }
        }
        if (choices[n].empty() && !repeats[n]) continue;
        repeats[n] = true;
        for (const Operand& o : recompute_node(*nodes[n], kept).in)
          if (const auto made = maker.find(o.tensor); made != maker.end() && !kept(o.tensor)) {
            repeats[made->second] = true;
            before[n].insert(static_cast<int32_t>(made->second));
          }
      }
      for (size_t n = 0; n < nodes.size(); ++n) {
        if (!repeats[n]) continue;
        const auto [it, fresh] =
            number.try_emplace({bucket(layer), n}, static_cast<int32_t>(work_.repeats.size()));
        if (fresh) {
          Repeat& repeat = work_.repeats.emplace_back();
          repeat.bucket = bucket(layer);
          repeat.choices.assign(choices[n].begin(), choices[n].end());
          for (const int32_t other : before[n])
            repeat.before.push_back(number.at({bucket(layer), static_cast<size_t>(other)}));
        }
        work_.repeats[it->second].seconds +=
            train.choice.group * seconds(recompute_node(*nodes[n], kept), g);
      }
    }
  }

  const CertificateInput& input_;
  ScheduleChoice at_end_;
  int32_t layers_ = 0, blocks_ = 0, iterations_ = 1;
  StepWork work_;
  std::map<std::pair<std::string, int32_t>, size_t> choice_of_;  // by name and bucket
  std::map<int32_t, int32_t> wanted_, ready_;                    // spans, by layer
};

}  // namespace

StepWork step_work(const CertificateInput& input, int32_t group, int32_t blocks) {
  return Reading(input, group, blocks).take();
}

}  // namespace spillway::verify_detail
