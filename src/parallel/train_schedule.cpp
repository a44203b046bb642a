// Backward pass, optimizer state, sums over ranks and updates, put into stages.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "graph/builder.h"
#include "parallel/build.h"
#include "parallel/gather.h"
#include "parallel/rank_sums.h"

namespace spillway {
namespace {

class TrainSchedule : private RankSums {
 public:
  TrainSchedule(const Graph& forward, const OptimizerConfig& optimizer, const ParallelSpec& spec,
                const ScheduleChoice& choice)
      : RankSums(spec), optimizer_(optimizer) {
    schedule_.name = "train";
    schedule_.spec = spec;
    schedule_.choice = choice;
    schedule_.graph = differentiate(forward);
    passes_ = static_cast<NodeId>(graph().nodes.size());
  }

  Schedule build() {
    begin();
    add_scalars();
    for (const Unit& unit : units_) {
      unit_ = static_cast<int32_t>(steps_.size());
      steps_.push_back(unit_steps(unit));
    }
    build_updates();
    unit_ = kNone;
    add_micro_batch_stages();
    add_update_stage();
    return std::move(schedule_);
  }

  Schedule build_check() {
    begin();
    schedule_.name = "check";
    schedule_.borrows = "train";
    Stage stage;
    stage.name = "check";
    stage.visits = digested_pass();
    schedule_.stages.push_back(std::move(stage));
    schedule_.spec.micro_batches = schedule_.spec.reduce_every = schedule_.choice.group = 1;
    return std::move(schedule_);
  }

 private:
  void begin() {
    if (!several_ranks()) schedule_.choice.reduce_delay = schedule_.choice.gather_ahead = 0;
    units_ = make_units(graph(), spec_.ranks);
    shard_parameters(schedule_, units_);
    gathers_ = add_gathers(graph(), units_, spec_, schedule_.choice.gather_ahead);
    add_state();
    add_losses();
  }

  // Master weights and moments: whole, or this rank's shard.
  void add_state() {
    const std::vector<std::vector<Range>> own = owned_ranges(graph(), units_, spec_);
    for (size_t i = 0; i < graph().params.size(); ++i) {
      const Param p = graph().params[i];
      if (p.grads.empty()) internal_error("parameter {} has no gradient", name(p));
      const int32_t layer = tensor(p.param).layer;
      const int64_t capacity = shard_capacity(total(p), spec_.ranks);
      if (short_lived_accumulators(layer))
        for (const TensorId grad : p.grads) {
          graph().tensors[grad].role = Role::partial_grad;
          graph().tensors[grad].place = "gradient_accumulators";
        }
      const Dims dims = schedule_.shards_state(layer) ? Dims(capacity) : tensor(p.param).dims;
      const std::string base = name(p);
      TensorId master = kNone;
      if (tensor(p.param).dtype != Dtype::f32)
        master = add_tensor(base + ".master", "master", Role::master, Dtype::f32, dims, layer);
      const TensorId m = add_tensor(base + ".m", "moments", Role::moment, Dtype::f32, dims, layer);
      const TensorId v = add_tensor(base + ".v", "moments", Role::moment, Dtype::f32, dims, layer);
      reduced_.push_back(separate_sum(layer)
                             ? add_tensor(base + ".reduced", "gradients", Role::grad, Dtype::f32,
                                          whole_sums(layer) ? tensor(p.param).dims : Dims(capacity),
                                          layer)
                             : kNone);
      if (schedule_.shards_state(layer)) graph().params[i].own = own[i];
      graph().params[i].master = master;
      graph().params[i].moment1 = m;
      graph().params[i].moment2 = v;
      if (schedule_.choice.rotates(layer))  // the next step's update reads it
        graph().tensors[updated_from(static_cast<int32_t>(i))].carried = true;
    }
  }

  void add_scalars() {
    int64_t partials = 0;
    for (const Param& p : graph().params) {
      partials_begin_.push_back(partials);
      partials += ceil_div(total(p), block_elements(total(p)));
    }
    partials_ =
        add_tensor("norm_partials", "norm_partials", Role::scalar, Dtype::f64, Dims(partials), 0);
    scalars_ =
        add_tensor("scalars", "scalars", Role::scalar, Dtype::u8, Dims(sizeof(StepScalars)), 0);
    if (!schedule_.choice.rotates()) return;
    pending_ = add_tensor("pending_scalars", "scalars", Role::scalar, Dtype::u8,
                          Dims(sizeof(StepScalars)), 0);
    graph().tensors[pending_].carried = true;
  }

  // Each rank writes its losses where they stand in the vector of all ranks' losses.
  void add_losses() {
    losses_ = graph().find("losses");
    if (losses_ == kNone) internal_error("the graph has no tensor \"losses\"");
    if (!several_ranks()) return;
    Tensor& losses = graph().tensors[losses_];
    const int64_t own = losses.dims.count();
    losses.name = "all_losses";
    losses.dims = Dims(own * spec_.ranks);
    for (Node& node : graph().nodes)
      for (Operand& out : node.out)
        if (out.tensor == losses_) out = range(losses_, own * spec_.rank, own);
  }

  // What the micro-batches of one iteration do with gradients.
  struct Flags {
    bool accumulate = false;          // accumulators hold earlier micro-batches of the interval
    bool reduces = false;             // the sum over ranks follows
    bool last = false;                // … the step's last one
    bool accumulate_reduced = false;  // sums over ranks hold earlier intervals
    bool operator==(const Flags&) const = default;
  };

  Flags flags_of(int32_t micro) const {
    const int32_t every = spec_.reduce_every;
    const bool reduces = micro % every == every - 1;
    return {micro % every != 0, reduces, reduces && micro == spec_.micro_batches - 1,
            reduces && micro / every > 0};
  }

  // Forward and backward nodes, every layer for all micro-batches of the group in turn; a layer's
  // units after the last node that adds to its gradients; with `reduce_delay`, one after the other
  // along the work of the next layer, and a unit's sum waits until so many turns have passed, so
  // that exchanges have time to run.
  std::vector<Visit> micro_batch_visits(const std::vector<Flags>& flags, bool first) const {
    const Graph& g = schedule_.graph;
    std::vector<NodeId> complete_after(static_cast<size_t>(g.layers) + 2, kNone);
    for (NodeId id = 0; id < passes_; ++id)
      for (const Operand& out : g.nodes[id].out)
        if (tensor(out.tensor).role == Role::grad || tensor(out.tensor).role == Role::partial_grad)
          complete_after[tensor(out.tensor).layer] = id;
    struct Sent {
      const UnitSteps* unit;  // nullptr: a turn in which nothing was sent
      int32_t micro;
    };
    std::vector<Visit> visits;
    std::vector<Sent> due, sent;  // `due`: complete, but not sent
    size_t next_due = 0, across_units = 0, summed_units = 0;
    const size_t levels = levels_.size(),
                 delay = static_cast<size_t>(schedule_.choice.reduce_delay);
    const auto append = [&](const std::vector<NodeId>& nodes, int32_t micro, bool accumulate) {
      for (const NodeId node : nodes) visits.push_back({node, micro, accumulate});
    };
    const auto sum_all_but = [&](size_t waiting) {
      for (; across_units + waiting < sent.size(); ++across_units)
        if (const auto& [unit, micro] = sent[across_units]; unit != nullptr)
          append(unit->across, micro, false);
      for (; summed_units + levels * waiting < sent.size(); ++summed_units) {
        const auto& [unit, micro] = sent[summed_units];
        if (unit == nullptr) continue;
        append(unit->sum, micro, flags[micro].accumulate_reduced);
        if (flags[micro].last) append(unit->finish_step, micro, false);
      }
    };
    // Sends the next unit, and brings those before it on their way.
    const auto advance = [&] {
      const bool none = next_due == due.size();
      if (none && summed_units == sent.size()) return;
      sent.push_back(none ? Sent{nullptr, 0} : due[next_due++]);
      if (sent.back().unit != nullptr) append(sent.back().unit->send, sent.back().micro, false);
      sum_all_but(delay);
    };
    size_t pace = 1, visits_to_go = 0;  // visits between two turns
    for (NodeId begin = 0, end = 0; begin < passes_; begin = end) {
      const Node& head = g.nodes[begin];
      while (end < passes_ && g.nodes[end].layer == head.layer && g.nodes[end].pass == head.pass)
        ++end;
      for (int32_t micro = 0; micro < static_cast<int32_t>(flags.size()); ++micro) {
        for (NodeId id = begin; id < end; ++id) {
          if (const auto updates = rotated_before_.find(id);
              updates != rotated_before_.end() && first && micro == 0)
            append(updates->second, 0, false);
          if (const auto gathers = gathers_.find(id); gathers != gathers_.end() && micro == 0)
            append(gathers->second, 0, false);
          visits.push_back({id, micro, flags[micro].accumulate});
          if (visits_to_go > 0 && --visits_to_go == 0) {
            advance();
            visits_to_go = pace;
          }
          if (!flags[micro].reduces) continue;
          for (int32_t layer = g.layers + 1; layer >= 0; --layer) {
            if (complete_after[layer] != id) continue;
            while (next_due < due.size()) advance();
            for (size_t u = 0; u < units_.size(); ++u)
              if (units_[u].layer == layer) due.push_back({&steps_[u], micro});
            // The layer's units are spread over the next layer's work.
            const size_t turns = due.size() - next_due + levels * delay;
            pace =
                std::max<size_t>(1, static_cast<size_t>(end - begin) * flags.size() / (turns + 1));
            while (delay == 0 && next_due < due.size()) advance();
            if (next_due < due.size()) advance();
            visits_to_go = pace;
          }
        }
      }
    }
    while (next_due < due.size()) advance();
    sum_all_but(0);
    return visits;
  }

  // Forward and backward pass; each gradient accumulator is digested once it is complete.
  std::vector<Visit> digested_pass() {
    std::vector<NodeId> complete_after(graph().tensors.size(), kNone);
    for (NodeId id = 0; id < passes_; ++id)
      for (const Operand& out : graph().nodes[id].out) complete_after[out.tensor] = id;
    std::vector<TensorId> digested;
    for (const Param& p : graph().params)
      digested.insert(digested.end(), p.grads.begin(), p.grads.end());
    const auto count = static_cast<int64_t>(digested.size());
    const TensorId digests =
        add_tensor("digests", "digests", Role::scalar, Dtype::f64, Dims(count), 0);
    std::map<NodeId, std::vector<NodeId>> after;
    for (int64_t i = 0; i < count; ++i) {
      const TensorId grad = digested[static_cast<size_t>(i)];
      const NodeId writer = complete_after[grad];
      Node node = op_node(tensor(grad).name + ".digest", OpKind::digest);
      node.in = {{grad}};
      node.out = {range(digests, i, 1)};
      after[writer].push_back(add_node(std::move(node), Pass::reduce, graph().nodes[writer].layer));
    }
    std::vector<Visit> visits;
    for (NodeId id = 0; id < passes_; ++id) {
      if (const auto gathers = gathers_.find(id); gathers != gathers_.end())
        for (const NodeId gather : gathers->second) visits.push_back({gather});
      visits.push_back({id});
      if (const auto more = after.find(id); more != after.end())
        for (const NodeId digest : more->second) visits.push_back({digest});
    }
    return visits;
  }

  void add_micro_batch_stages() {
    const int32_t count = spec_.micro_batches, group = schedule_.choice.group;
    const auto flags_from = [&](int32_t micro) {
      std::vector<Flags> flags;
      for (int32_t m = micro; m < micro + group; ++m) flags.push_back(flags_of(m));
      return flags;
    };
    for (int32_t micro = 0; micro < count;) {
      const std::vector<Flags> flags = flags_from(micro);
      Stage stage;
      stage.micro_base = micro;
      const bool first = micro == 0;
      do micro += group;
      while (micro < count && !(first && pending_ != kNone) && flags_from(micro) == flags);
      stage.trip = (micro - stage.micro_base) / group;
      stage.visits = micro_batch_visits(flags, first);
      const bool last = micro == count;
      stage.name = first && last ? "only" : first ? "first" : last ? "last" : "steady";
      schedule_.stages.push_back(std::move(stage));
    }
  }

  // Updates of every unit, and what follows them, as nodes.
  void build_updates() {
    for (const Unit& unit : units_) {
      unit_ = static_cast<int32_t>(&unit - units_.data());
      std::vector<NodeId>& nodes = updates_.emplace_back();
      for (const Piece& piece : unit.pieces)
        for (Node& node : updates(piece))
          nodes.push_back(add_node(std::move(node), Pass::update, unit.layer));
      if (!schedule_.shards_state(unit.layer) || schedule_.shards_parameters(unit.layer)) continue;
      for (Node& node : gather(unit, ".gather_parameters", [&](const Piece& piece) {
             return schedule_.graph.params[piece.param].param;
           }))
        nodes.push_back(add_node(std::move(node), Pass::update, unit.layer));
    }
    if (!schedule_.choice.rotates()) return;
    const std::vector<NodeId> readers = first_readers();
    for (size_t u = 0; u < units_.size(); ++u) {
      const int32_t layer = units_[u].layer;
      if (!schedule_.choice.rotates(layer)) continue;
      if (readers[layer] == passes_)
        internal_error("no node reads the parameters of layer {}", layer);
      std::vector<NodeId>& before = rotated_before_[readers[layer]];
      before.insert(before.end(), updates_[u].begin(), updates_[u].end());
    }
  }

  // By layer, the first node that needs its parameters as they are after an update: it reads them,
  // or they are gathered before it.
  std::vector<NodeId> first_readers() const {
    std::vector<NodeId> first(static_cast<size_t>(schedule_.graph.layers) + 2, passes_);
    const auto note = [&](const std::vector<Operand>& operands, NodeId reader) {
      for (const Operand& o : operands)
        if (const Tensor& t = tensor(o.tensor); t.role == Role::param || t.role == Role::gathered)
          first[t.layer] = std::min(first[t.layer], reader);
    };
    for (NodeId id = 0; id < passes_; ++id) note(schedule_.graph.nodes[id].in, id);
    for (const auto& [before, nodes] : gathers_)
      for (const NodeId id : nodes) note(schedule_.graph.nodes[id].out, before);
    return first;
  }

  void add_update_stage() {
    Stage stage;
    stage.name = "update";
    const auto add = [&](Node node, int32_t layer) {
      stage.visits.push_back({add_node(std::move(node), Pass::update, layer)});
    };
    if (several_ranks())
      for (Node& node : scalar_exchanges()) add(std::move(node), 0);
    Node norm = op_node("scalars.norm_finish", OpKind::norm_finish);
    norm.attrs.clip = static_cast<float>(optimizer_.clip);
    norm.in = {{partials_}, {losses_}, {scalars_}};
    norm.out = {{scalars_}};
    add(std::move(norm), 0);
    for (size_t u = 0; u < units_.size(); ++u)
      if (!schedule_.choice.rotates(units_[u].layer))
        for (const NodeId node : updates_[u]) stage.visits.push_back({node});
    if (pending_ != kNone) {
      Node keep;
      keep.name = "scalars.keep";
      keep.kind = NodeKind::copy;
      keep.in = {{scalars_}};
      keep.out = {{pending_}};
      add(std::move(keep), 0);
    }
    schedule_.stages.push_back(std::move(stage));
  }

  // Norm partials and losses of every rank come to every rank. Partials stand in order of places,
  // so they go across nodes first, losses in order of ranks: inside the nodes first.
  std::vector<Node> scalar_exchanges() const {
    std::vector<Node> nodes;
    for (size_t step = 0; step < levels_.size(); ++step) {
      Node node = exchange_node("scalars.exchange" + std::string(step > 0 ? ".second" : ""));
      gather_losses(node, step);
      gather_partials(node, levels_[levels_.size() - 1 - step]);
      nodes.push_back(std::move(node));
    }
    return nodes;
  }

  void gather_losses(Node& node, size_t step) const {
    const Level& level = levels_[step];
    const int64_t micros = tensor(losses_).dims.count() / spec_.ranks;
    // Of the members' ranks, or in the second step of the nodes that they stand for.
    const int64_t each = micros * (step > 0 ? spec_.tree : 1);
    const auto losses_of = [&](int32_t member) {
      return Range{step > 0 ? member * each : level.ranks[member] * each, each};
    };
    const Range own = losses_of(level.own);
    send_all(node, range(losses_, own.begin, own.count), level);
    receive_each(node, losses_, one_each(level, level.width(), losses_of));
  }

  void gather_partials(Node& node, const Level& level) const {
    for (const Unit& unit : units_)
      for (const Piece& piece : unit.pieces) {
        const int64_t block = block_elements(total_of(piece));
        const auto blocks = [&](int32_t member) {
          const Range r = part(piece, level, member);
          return Range{partials_begin_[piece.param] + ceil_div(r.begin, block),
                       ceil_div(r.count, block)};
        };
        const Range own = blocks(level.own);
        send_all(node, range(partials_, own.begin, own.count), level);
        const int32_t even = even_members(piece, total_of(piece), spec_.ranks, level);
        receive_each(node, partials_,
                     one_each(level, piece.count % block == 0 ? even : std::min(even, 1), blocks));
      }
  }

  // AdamW of this rank's part of a piece, or of every rank's part if the state is whole.
  std::vector<Node> updates(const Piece& piece) const {
    const Param& p = schedule_.graph.params[piece.param];
    std::vector<Node> nodes;
    const bool sharded = schedule_.shards_state(layer_of(piece));
    const Range r = sharded ? own_part(piece) : every_part(piece);
    if (r.count > 0) {
      const int64_t state_begin = sharded ? piece.begin : r.begin;
      Node node = op_node(piece_name(piece) + ".adamw", OpKind::adamw);
      node.attrs.beta1 = static_cast<float>(optimizer_.beta1);
      node.attrs.beta2 = static_cast<float>(optimizer_.beta2);
      node.attrs.eps = static_cast<float>(optimizer_.eps);
      node.attrs.weight_decay = p.decay ? static_cast<float>(optimizer_.weight_decay) : 0.0f;
      const Operand grad = gathers_sums(layer_of(piece))
                               ? range(updated_from(piece.param), r.begin, r.count)
                               : summed(piece);
      const Operand param = p.shard == kNone ? range(p.param, r.begin, r.count)
                                             : range(p.shard, state_begin, r.count);
      const Operand state = p.master == kNone ? param : range(p.master, state_begin, r.count);
      const Operand m = range(p.moment1, state_begin, r.count);
      const Operand v = range(p.moment2, state_begin, r.count);
      node.on_host = schedule_.choice.updates_on_host(layer_of(piece));
      const bool rotated = schedule_.choice.rotates(tensor(p.param).layer);
      node.in = {grad, {rotated ? pending_ : scalars_}, state, m, v};
      node.out = {state, m, v};
      if (p.master != kNone) {
        node.in.push_back(param);  // a skipped update leaves what stands there
        node.out.push_back(param);
      }
      nodes.push_back(std::move(node));
    }
    return nodes;
  }

  OptimizerConfig optimizer_;
  NodeId passes_ = 0;                              // nodes before it are forward and backward ones
  std::map<NodeId, std::vector<NodeId>> gathers_;  // by the node that they go before
  std::vector<Unit> units_;
  std::vector<UnitSteps> steps_;                          // by unit
  std::vector<std::vector<NodeId>> updates_;              // by unit
  std::map<NodeId, std::vector<NodeId>> rotated_before_;  // by the node that they go before
  TensorId scalars_ = kNone, losses_ = kNone;
  TensorId pending_ = kNone;  // scalars of the step whose rotated updates are to come
};

}  // namespace

namespace {

void check_layout(const Graph& forward, const ParallelSpec& spec, const ScheduleChoice& choice) {
  if (!choice.zero.empty() && std::ssize(choice.zero) != forward.layers + 2)
    internal_error("ZeRO stages of {} layers for a model of {}", choice.zero.size(),
                   forward.layers + 2);
  if (spec.ranks < 1 || spec.rank < 0 || spec.rank >= spec.ranks || spec.micro_batches < 1 ||
      spec.reduce_every < 1 || spec.micro_batches % spec.reduce_every != 0)
    internal_error("rank {} of {}, {} micro-batches summed {} at a time is no valid layout",
                   spec.rank, spec.ranks, spec.micro_batches, spec.reduce_every);
  const std::vector<int32_t> groups = group_choices(spec);
  if (std::find(groups.begin(), groups.end(), choice.group) == groups.end())
    internal_error("a group of {} does not go with {} micro-batches summed {} at a time",
                   choice.group, spec.micro_batches, spec.reduce_every);
}

}  // namespace

Schedule build_train_schedule(const Graph& forward, const OptimizerConfig& optimizer,
                              const ParallelSpec& spec, const ScheduleChoice& choice) {
  check_layout(forward, spec, choice);
  return TrainSchedule(forward, optimizer, spec, choice).build();
}

Schedule build_check_schedule(const Graph& forward, const OptimizerConfig& optimizer,
                              const ParallelSpec& spec, const ScheduleChoice& choice) {
  check_layout(forward, spec, choice);
  return TrainSchedule(forward, optimizer, spec, choice).build_check();
}

}  // namespace spillway
