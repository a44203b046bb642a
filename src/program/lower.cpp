#include <algorithm>
#include <set>

#include "base/error.h"
#include "program/stages.h"
#include "program/uses.h"

namespace spillway {
namespace {

constexpr int32_t kInputSlots = 2;  // groups of micro-batches of tokens on the device at once

bool shared_between_programs(const Tensor& t) {
  const Role role = t.role;
  return t.carried || role == Role::param || role == Role::master || role == Role::moment ||
         role == Role::kv_cache;
}

Scope scope_of(const Tensor& t) {
  if (shared_between_programs(t)) return Scope::run;
  return t.role == Role::activation ? Scope::iteration : Scope::step;
}

// Builds one ProgramSet out of several schedules.
class Lowering {
 public:
  Lowering(const std::vector<const Schedule*>& schedules, const Placement& placement,
           const WorkspaceRules& rules)
      : schedules_(schedules), placement_(placement), rules_(rules) {}

  Lowered run(int64_t staging_bytes) {
    for (const Schedule* s : schedules_) {
      sequencers_.emplace_back(*s, placement_);
      stages_.push_back(plan_stages(*s, sequencers_.back()));
      size_rings(*s, placement_, stages_.back(), rings_);
    }
    for (const auto& [name, ring] : rings_)
      ring_buffer_[name] = add_buffer({.name = "ring " + name,
                                       .place = ring.place,
                                       .scope = Scope::step,
                                       .bytes = ring.slot_bytes,
                                       .versions = ring.slots});
    for (size_t s = 0; s < schedules_.size(); ++s) lower_schedule(s);
    if (staging_bytes > 0)
      result_.io["staging"] = add_buffer({.name = "checkpoint staging",
                                          .place = "staging",
                                          .tier = Tier::host,
                                          .scope = Scope::step,
                                          .bytes = staging_bytes});
    collect_homes();
    return std::move(result_);
  }

 private:
  BufferId add_buffer(Buffer b) {
    b.bytes = std::max<int64_t>(b.bytes, 1);
    result_.set.buffers.push_back(std::move(b));
    return static_cast<BufferId>(result_.set.buffers.size()) - 1;
  }

  // Of step and iteration buffers.
  const std::string& owner() const {
    return schedule().borrows.empty() ? schedule().name : schedule().borrows;
  }

  std::string qualified(const Tensor& t) const {
    return shared_between_programs(t) ? t.name : owner() + "." + t.name;
  }

  BufferId tensor_buffer(TensorId id, Tier tier, int32_t micro = 0) {
    const Tensor& t = schedule().graph.tensors[id];
    std::string name = qualified(t) + of_micro(micro) + (tier == Tier::host ? " (host)" : "");
    auto [it, fresh] = tensor_buffer_.try_emplace(name, -1);
    if (fresh) {
      it->second = add_buffer({.name = name,
                               .place = t.place,
                               .tensor = current_ == 0 ? id : kNone,
                               .tier = tier,
                               .scope = scope_of(t),
                               .bytes = t.bytes()});
      if (t.role == Role::kv_cache) result_.kv_caches[t.name] = it->second;
      if (t.role == Role::scalar && t.carried) result_.io[t.name] = it->second;
    }
    return it->second;
  }

  static std::string of_micro(int32_t micro) {
    return micro == 0 ? "" : " of micro-batch +" + std::to_string(micro);
  }
  Affine micro_batch(int32_t micro) const {  // of the step, by iteration
    return {micro_base_ + micro, schedule().choice.group};
  }

  BufferId host_io(const std::string& name, int64_t bytes, int32_t versions) {
    auto [it, fresh] = result_.io.try_emplace(name, -1);
    if (fresh)
      it->second = add_buffer({.name = name + " (host)",
                               .place = "batch",
                               .tier = Tier::host,
                               .scope = Scope::run,
                               .bytes = bytes,
                               .versions = versions});
    return it->second;
  }

  const Schedule& schedule() const { return *schedules_[current_]; }

  void lower_schedule(size_t index) {
    current_ = index;
    program_ = &result_.set.programs.emplace_back();
    program_->name = schedule().name;
    sequence_ = 0;
    const auto& stages = schedule().stages;
    for (size_t s = 0; s < stages.size(); ++s) {
      const InstrId begin = static_cast<InstrId>(program_->instrs.size());
      lower_stage(stages[s], stages_[index][s], s == 0, s + 1 == stages.size());
      program_->segments.push_back(
          {stages[s].name, stages[s].trip, begin, static_cast<InstrId>(program_->instrs.size())});
    }
  }

  // ---- copies -------------------------------------------------------------------------------

  static ProgramOperand whole(BufferId b, int64_t offset, Dtype dtype, Dims dims,
                              Affine version = {}) {
    return {.buffer = b, .version = version, .offset = offset, .dtype = dtype, .dims = dims};
  }

  void emit_copy(Lane lane, std::string name, ProgramOperand from, ProgramOperand to) {
    Instr i;
    i.kind = InstrKind::copy;
    i.lane = lane;
    i.name = std::move(name);
    i.access.push_back({from.buffer, from.version, from.offset, from.bytes(), false});
    i.access.push_back({to.buffer, to.version, to.offset, to.bytes(), true});
    i.in.push_back(std::move(from));
    i.out.push_back(std::move(to));
    program_->instrs.push_back(std::move(i));
  }

  void emit_use_copies(const Use& use, TensorId tensor, const Piece& piece, bool fetch) {
    const Tensor& t = schedule().graph.tensors[tensor];
    const int64_t size = size_of(t.dtype);
    for (const ElementRange& range : (fetch ? piece.fetch : piece.written).ranges()) {
      const Dims dims(range.count());
      const ProgramOperand slot = whole(ring_buffer_.at(use.ring), piece.offset_of(range, size),
                                        t.dtype, dims, slot_of(use));
      const ProgramOperand home =
          whole(tensor_buffer(tensor, Tier::host, use.micro), range.begin * size, t.dtype, dims);
      if (fetch)
        emit_copy(Lane::h2d, "h2d " + t.name, home, slot);
      else
        emit_copy(Lane::d2h, "d2h " + t.name, slot, home);
    }
  }

  Affine slot_of(const Use& use) const { return {use.index % rings_.at(use.ring).slots, 0}; }

  // ---- operands -----------------------------------------------------------------------------

  ProgramOperand operand(const Instance& instance, const Operand& o, int32_t use_index,
                         const StagePlan& plan) {
    const Tensor& t = schedule().graph.tensors[instance.tensor];
    ProgramOperand p;
    p.dtype = t.dtype;
    p.dims = o.count < 0 ? t.dims : Dims(o.count);
    p.accumulate = o.accumulate;
    switch (store_of(schedule(), sequencers_[current_], instance)) {
      case Store::fixed:
        p.buffer = tensor_buffer(instance.tensor, Tier::device, instance.micro);
        break;
      case Store::input: {
        const std::string name = owner() + "." + t.name;
        auto [it, fresh] = tensor_buffer_.try_emplace(name, -1);
        if (fresh)
          it->second = add_buffer({.name = name,
                                   .place = "batch",
                                   .scope = Scope::step,
                                   .bytes = t.bytes(),
                                   .versions = kInputSlots * schedule().choice.group});
        p.buffer = it->second;
        p.version = micro_batch(instance.micro);
        break;
      }
      case Store::transient: {
        auto [it, fresh] = transient_.try_emplace(instance, -1);
        if (fresh)
          it->second = add_buffer(
              {.name = schedule().name + "." + t.name + of_micro(instance.micro) +
                       (instance.which == 1 ? " (recomputed)" : ""),
               .place = t.place == "gradient_activations" ? t.place : std::string("transients"),
               .scope = Scope::iteration,
               .bytes = t.bytes(),
               .pinned_region = false});
        p.buffer = it->second;
        break;
      }
      case Store::ring: {
        const Use& use = plan.uses[use_index];
        const Piece& piece = use.pieces.at(instance.tensor);
        p.buffer = ring_buffer_.at(use.ring);
        p.version = slot_of(use);
        p.offset = p.dims.count() == 0
                       ? 0
                       : piece.offset_of({o.begin, o.begin + p.dims.count()}, size_of(t.dtype));
        return p;
      }
    }
    p.offset = o.begin * size_of(t.dtype);
    return p;
  }

  void emit_item(const StagePlan& plan, size_t index) {
    const Item& item = plan.items[index];
    const Node& node = item.node;
    Instr i;
    i.kind = node.kind == NodeKind::exchange ? InstrKind::exchange
             : node.kind == NodeKind::copy   ? InstrKind::copy
                                             : InstrKind::op;
    i.lane = node.kind == NodeKind::op || (node.kind == NodeKind::copy && node.pass == Pass::update)
                 ? Lane::compute
                 : Lane::comm;
    i.op = node.op;
    i.name = node.name;
    i.accumulate = item.accumulate;
    i.micro = micro_batch(item.micro);
    for (size_t k = 0; k < item.in.size(); ++k)
      i.in.push_back(operand(item.in[k], node.in[k], plan.in_use[index][k], plan));
    for (size_t k = 0; k < item.out.size(); ++k)
      i.out.push_back(operand(item.out[k], node.out[k], plan.out_use[index][k], plan));
    for (const ProgramOperand& o : i.in)
      if (o.bytes() > 0) i.access.push_back({o.buffer, o.version, o.offset, o.bytes(), false});
    for (const ProgramOperand& o : i.out) {
      if (o.bytes() == 0) continue;
      if (o.accumulate && i.accumulate)
        i.access.push_back({o.buffer, o.version, o.offset, o.bytes(), false});
      i.access.push_back({o.buffer, o.version, o.offset, o.bytes(), true});
    }
    if (i.kind == InstrKind::exchange) {
      i.sequence = sequence_++;
      for (const Transfer& t : node.transfers) i.transfers.push_back({t.peer, t.send, t.operand});
    } else if (i.kind == InstrKind::op) {
      i.attrs = static_cast<int32_t>(program_->attrs.size());
      program_->attrs.push_back(node.attrs);
      if (op_def(node.op).workspace != nullptr) {
        std::vector<TensorType> types;
        for (const ProgramOperand& o : i.in) types.push_back({o.dtype, o.dims});
        const int64_t bytes = op_def(node.op).workspace(node.attrs, types, rules_);
        if (bytes > 0) {
          i.workspace = whole(add_buffer({.name = node.name + " workspace",
                                          .place = "workspace",
                                          .scope = Scope::iteration,
                                          .bytes = bytes,
                                          .pinned_region = false}),
                              0, Dtype::u8, Dims(bytes));
          i.access.push_back({i.workspace.buffer, {}, 0, bytes, true});
        }
      }
    }
    program_->instrs.push_back(std::move(i));
  }

  // ---- stages -------------------------------------------------------------------------------

  // For each item, the uses to fetch before it, in order of need. A fetch is issued once its slot
  // is free, what it fetches has been written back, and the need is not too far off: on an in-order
  // lane an early copy would hold up later ones that are needed sooner.
  std::vector<std::vector<int32_t>> fetch_positions(const StagePlan& plan) const {
    const int32_t items = static_cast<int32_t>(plan.items.size());
    const int32_t per_layer = 1 + items / (2 * (schedule().graph.layers + 2));
    std::vector<std::vector<int32_t>> before(items);
    std::map<std::string, std::vector<int32_t>> of_ring;
    // Item after which the home holds this stage's value, by tensor and micro-batch.
    std::map<std::pair<TensorId, int32_t>, int32_t> written_back;
    for (size_t u = 0; u < plan.uses.size(); ++u) {
      const Use& use = plan.uses[u];
      const Ring& ring = rings_.at(use.ring);
      std::vector<int32_t>& uses = of_ring[use.ring];
      int32_t at = std::max(0, use.first - per_layer * ring.slots);
      if (use.index >= ring.slots)
        at = std::max(at, plan.uses[uses[use.index - ring.slots]].last + 1);
      bool fetch = false;
      for (const auto& [tensor, piece] : use.pieces) {
        fetch = fetch || (ring.has_home && !piece.fetch.empty());
        if (auto it = written_back.find({tensor, use.micro}); it != written_back.end())
          at = std::max(at, it->second + 1);
        if (!piece.written.empty()) written_back[{tensor, use.micro}] = piece.last_write;
      }
      uses.push_back(static_cast<int32_t>(u));
      if (!fetch) continue;
      if (at > use.first) internal_error("ring '{}' has no slot free in time", use.ring);
      before[at].push_back(static_cast<int32_t>(u));
    }
    return before;
  }

  void lower_stage(const Stage& stage, const StagePlan& plan, bool first, bool last) {
    micro_base_ = stage.micro_base;
    transient_.clear();
    const auto before = fetch_positions(plan);
    std::map<int32_t, std::vector<std::pair<int32_t, TensorId>>> after;  // item → writebacks
    for (size_t u = 0; u < plan.uses.size(); ++u)
      if (rings_.at(plan.uses[u].ring).has_home)
        for (const auto& [tensor, piece] : plan.uses[u].pieces)
          if (!piece.written.empty())
            after[piece.last_write].push_back({static_cast<int32_t>(u), tensor});

    emit_inputs(plan, first);
    for (size_t p = 0; p < plan.items.size(); ++p) {
      for (const int32_t u : before[p])
        for (const auto& [tensor, piece] : plan.uses[u].pieces)
          emit_use_copies(plan.uses[u], tensor, piece, true);
      emit_item(plan, p);
      if (auto it = after.find(static_cast<int32_t>(p)); it != after.end())
        for (const auto& [u, tensor] : it->second)
          emit_use_copies(plan.uses[u], tensor, plan.uses[u].pieces.at(tensor), false);
    }
    if (last) emit_outputs(plan);
  }

  void emit_inputs(const StagePlan& plan, bool first) {
    const Graph& g = schedule().graph;
    std::set<Instance> inputs;
    bool scalars = false;
    for (const Item& item : plan.items)
      for (const Instance& i : item.in) {
        if (g.tensors[i.tensor].role == Role::input) inputs.insert({i.tensor, 0, i.micro});
      }
    for (const Tensor& t : g.tensors) scalars = scalars || t.name == "scalars";
    for (const Instance& input : inputs) {
      const Tensor& t = g.tensors[input.tensor];
      const ProgramOperand device = operand(input, {input.tensor}, kNone, plan);
      const BufferId host =
          host_io(schedule().name + "." + t.name, t.bytes(), schedule().spec.micro_batches);
      emit_copy(Lane::h2d, "h2d " + t.name,
                whole(host, 0, t.dtype, t.dims, micro_batch(input.micro)), device);
    }
    if (first && scalars) {
      const TensorId id = g.find("scalars");
      const Tensor& t = g.tensors[id];
      emit_copy(Lane::h2d, "h2d scalars",
                whole(host_io(schedule().name + ".scalars", t.bytes(), 1), 0, t.dtype, t.dims),
                operand({id, 0}, {id}, kNone, plan));
    }
  }

  // Scalars after the update; of a program of one stage, what nothing in it reads and no other has.
  void emit_outputs(const StagePlan& plan) {
    const Graph& g = schedule().graph;
    std::set<TensorId> read, written;
    for (const StagePlan& stage : stages_[current_])
      for (const Item& item : stage.items) {
        for (const Instance& i : item.in) read.insert(i.tensor);
        for (const Instance& i : item.out) written.insert(i.tensor);
      }
    for (const TensorId id : written) {
      const Tensor& t = g.tensors[id];
      const bool borrowed =
          !schedule().borrows.empty() && schedules_[0]->graph.find(t.name) != kNone;
      if (borrowed) continue;
      const bool updated_scalars = t.name == "scalars";
      const bool result = (t.role == Role::scalar || t.role == Role::activation) &&
                          !read.contains(id) && schedule().stages.size() == 1 &&
                          (t.role == Role::scalar || t.name == "logits");
      if (!updated_scalars && !result) continue;
      const std::string name = schedule().name + "." + t.name + (updated_scalars ? ".out" : "");
      emit_copy(Lane::d2h, "d2h " + t.name, operand({id, 0}, {id}, kNone, plan),
                whole(host_io(name, t.bytes(), 1), 0, t.dtype, t.dims));
    }
  }

  void collect_homes() {
    current_ = 0;
    const Graph& g = schedule().graph;
    const ParallelSpec& spec = schedule().spec;
    const auto add = [&](TensorId id, bool sharded, int64_t total) {
      if (id == kNone) return;
      const Tier tier = sequencers_[0].where(id) == Where::host ? Tier::host : Tier::device;
      const Range range = sharded ? shard_of(total, spec.rank, spec.ranks) : Range{0, total};
      result_.homes.push_back({id, tensor_buffer(id, tier), 0, range.begin, range.count});
    };
    for (const Param& p : g.params) {
      const int64_t total = g.tensors[p.param].dims.count();
      const bool sharded = spec.shards_state();
      add(p.home(), p.shard != kNone, total);
      add(p.master, sharded, total);
      add(p.moment1, sharded, total);
      add(p.moment2, sharded, total);
    }
  }

  const std::vector<const Schedule*>& schedules_;
  const Placement& placement_;
  const WorkspaceRules rules_;
  Lowered result_;
  std::vector<Sequencer> sequencers_;
  std::vector<std::vector<StagePlan>> stages_;
  std::map<std::string, Ring> rings_;
  std::map<std::string, BufferId> ring_buffer_, tensor_buffer_;
  // Of the schedule and stage being lowered:
  size_t current_ = 0;
  Program* program_ = nullptr;
  int32_t sequence_ = 0, micro_base_ = 0;
  std::map<Instance, BufferId> transient_;
};

}  // namespace

std::vector<PlaceUnit> place_units(const Schedule& train) {
  const Placement all_resident;
  const Sequencer sequencer(train, all_resident);
  std::map<PlaceKey, PlaceUnit> units;
  for (size_t i = 0; i < train.graph.tensors.size(); ++i) {
    const Tensor& t = train.graph.tensors[i];
    const bool activation = t.role == Role::activation;
    if (activation ? !sequencer.saved(static_cast<TensorId>(i))
                   : t.role != Role::param && t.role != Role::master && t.role != Role::moment &&
                         t.role != Role::grad)
      continue;
    PlaceUnit& unit = units[{t.place, t.layer}];
    if (unit.bytes == 0) unit.recomputable = activation;
    unit.key = {t.place, t.layer};
    unit.bytes += t.bytes() * (activation ? train.choice.group : 1);
    unit.activation = activation;
    unit.recomputable = unit.recomputable && activation && !t.anchor;
  }
  std::vector<PlaceUnit> result;
  for (auto& [key, unit] : units) result.push_back(std::move(unit));
  return result;
}

Lowered lower(const std::vector<const Schedule*>& schedules, const Placement& placement,
              const WorkspaceRules& rules, int64_t staging_bytes) {
  return Lowering(schedules, placement, rules).run(staging_bytes);
}

}  // namespace spillway
