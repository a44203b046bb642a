#include <algorithm>
#include <set>

#include "base/error.h"
#include "program/stages.h"
#include "program/tensor_buffers.h"
#include "program/uses.h"

namespace spillway {
namespace {

// Updates on the host whose gradients, copied there for them, stand there at once; and how many are
// given to the host's processors before the first one's parameters are waited for.
constexpr int32_t kHostSlots = 3;

// Builds one ProgramSet out of several schedules.
class Lowering : private TensorBuffers {
 public:
  // `outline`: no instructions, but when they use what may share bytes.
  Lowering(const std::vector<const Schedule*>& schedules, const Placement& placement,
           const WorkspaceRules& rules, bool outline)
      : TensorBuffers(schedules), placement_(placement), rules_(rules), outline_(outline) {}

  std::vector<SharedUse> take_shared_use() { return std::move(shared_use_); }

  Lowered run(int64_t staging_bytes) {
    sequencers_.reserve(schedules_.size());
    for (const Schedule* s : schedules_) {
      sequencers_.emplace_back(*s, placement_);
      stages_.push_back(plan_stages(*s, sequencers_.back(), rings_));
      size_rings(*s, placement_, stages_.back(), rings_);
    }
    ring_buffer_.resize(rings_.all.size());
    for (const auto& [name, id] : rings_.by_name) {
      const Ring& ring = rings_.all[id];
      ring_buffer_[id] = add_buffer({.name = "ring " + name,
                                     .place = ring.place,
                                     .scope = Scope::step,
                                     .bytes = ring.slot_bytes,
                                     .versions = ring.slots});
    }
    add_host_gradients();
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
  // ---- updates on the host ------------------------------------------------------------------

  bool gradient_on_device(const Node& update) const {
    return sequencers_[current_].where(update.in[0].tensor) != Where::host;
  }

  // Slots for gradients whose home is on the device.
  void add_host_gradients() {
    int64_t bytes = 0;
    for (current_ = 0; current_ < schedules_.size(); ++current_)
      for (const StagePlan& stage : stages_[current_])
        for (const Item& item : stage.items)
          if (item.node->on_host && gradient_on_device(*item.node))
            bytes = std::max(bytes, count_of(item.node->in[0]) * size_of(Dtype::f32));
    if (bytes > 0)
      host_gradients_ = add_buffer({.name = "gradients for updates on the host",
                                    .place = "gradients",
                                    .tier = Tier::host,
                                    .scope = Scope::step,
                                    .bytes = bytes,
                                    .versions = kHostSlots});
  }

  int64_t count_of(const Operand& o) const {
    return o.count < 0 ? schedule().graph.tensors[o.tensor].dims.count() : o.count;
  }

  ProgramOperand fixed_operand(const Operand& o) {
    const Tensor& t = schedule().graph.tensors[o.tensor];
    return whole(tensor_buffer(o.tensor, Tier::device), o.begin * size_of(t.dtype), t.dtype,
                 o.count < 0 ? t.dims : Dims(o.count));
  }

  // Where an update on the host finds its operand; emits the copy to there if it is on the device.
  ProgramOperand host_operand(const Node& node, const Operand& o) {
    const Graph& g = schedule().graph;
    const Tensor& t = g.tensors[o.tensor];
    const int64_t size = size_of(t.dtype);
    const Dims dims = o.count < 0 ? t.dims : Dims(o.count);
    switch (t.role) {
      case Role::scalar: {
        const ProgramOperand host = whole(host_copy(o.tensor, t.dims), 0, t.dtype, dims);
        if (host_scalars_.insert(o.tensor).second)
          emit_copy(Lane::d2h, t.name, fixed_operand(o), host);
        return host;
      }
      case Role::grad: {
        if (!gradient_on_device(node)) break;
        const ProgramOperand host =
            whole(host_gradients_, 0, t.dtype, dims, {host_updates_++ % kHostSlots, 0});
        emit_copy(Lane::d2h, t.name, fixed_operand(o), host);
        return host;
      }
      case Role::param: {
        if (sequencers_[current_].where(o.tensor) == Where::host) break;
        const Operand& moment = node.in[3];
        return whole(host_copy(o.tensor, g.tensors[moment.tensor].dims), moment.begin * size,
                     t.dtype, dims);
      }
      default:
        break;
    }
    return whole(tensor_buffer(o.tensor, Tier::host), o.begin * size, t.dtype, dims);
  }

  void emit_host_update(const Item& item) {
    const Node& node = *item.node;
    std::vector<ProgramOperand> in, out;
    for (const Operand& o : node.in) in.push_back(host_operand(node, o));
    for (const Operand& o : node.out) {
      if (const auto same = std::find_if(
              node.in.begin(), node.in.end(),
              [&](const Operand& i) { return i.tensor == o.tensor && i.begin == o.begin; });
          same != node.in.end())
        out.push_back(in[same - node.in.begin()]);
      else
        internal_error("'{}' does not update '{}' in place", node.name,
                       schedule().graph.tensors[o.tensor].name);
      if (schedule().graph.tensors[o.tensor].role == Role::param &&
          sequencers_[current_].where(o.tensor) != Where::host)
        to_device_.push_back(
            {schedule().graph.tensors[o.tensor].name, out.back(), fixed_operand(o)});
    }
    if (outline_) {
      ++issued_;
      return;
    }
    Instr& i = program_->instrs.emplace_back();
    i.kind = InstrKind::op;
    i.lane = Lane::cpu;
    i.op = node.op;
    i.name = node.name;
    i.micro = micro_batch(item.micro);
    i.attrs = static_cast<int32_t>(program_->attrs.size());
    program_->attrs.push_back(node.attrs);
    for (const auto* operands : {&in, &out})
      for (const ProgramOperand& o : *operands)
        if (o.bytes() > 0)
          i.access.push_back({o.buffer, o.version, o.offset, o.bytes(), operands == &out});
    i.in = std::move(in);
    i.out = std::move(out);
    ++issued_;
  }

  // Parameters that were updated on the host go back to the device, all but the newest `kept`.
  void emit_updated(size_t kept) {
    for (; updated_ + kept < to_device_.size(); ++updated_)
      emit_copy(Lane::h2d, to_device_[updated_].name, to_device_[updated_].from,
                to_device_[updated_].to);
  }

  Affine micro_batch(int32_t micro) const {  // of the step, by iteration
    return {micro_base_ + micro, schedule().choice.group};
  }

  void lower_schedule(size_t index) {
    current_ = index;
    program_ = &result_.set.programs.emplace_back();
    program_->name = schedule().name;
    SharedUse& shared_use = shared_use_.emplace_back();
    sequence_ = issued_ = 0;
    const auto& stages = schedule().stages;
    size_t instrs = 0, items = 0;
    for (const StagePlan& plan : stages_[index]) {
      items += plan.items.size();
      for (const Use& use : plan.uses) instrs += 2 * use.pieces.size();
    }
    if (!outline_) {
      program_->instrs.reserve(instrs + items);
      program_->attrs.reserve(items);
    }
    for (size_t s = 0; s < stages.size(); ++s) {
      const InstrId begin = issued_;
      lower_stage(stages[s], stages_[index][s], s == 0, s + 1 == stages.size());
      const Segment segment{stages[s].name, stages[s].trip, begin, issued_};
      program_->segments.push_back(segment);
      shared_use.segments.push_back(segment);
    }
  }

  // ---- copies -------------------------------------------------------------------------------

  static ProgramOperand whole(BufferId b, int64_t offset, Dtype dtype, Dims dims,
                              Affine version = {}) {
    return {.buffer = b, .version = version, .offset = offset, .dtype = dtype, .dims = dims};
  }

  // Of a tensor, between the tiers.
  void emit_copy(Lane lane, const std::string& tensor, ProgramOperand from, ProgramOperand to) {
    if (outline_) {
      for (const BufferId b : {from.buffer, to.buffer})
        shared_use_.back().add(b, issued_, buffers());
      ++issued_;
      return;
    }
    Instr& i = program_->instrs.emplace_back();
    i.kind = InstrKind::copy;
    i.lane = lane;
    i.name = (lane == Lane::h2d ? "h2d " : "d2h ") + tensor;
    i.access.reserve(2);
    i.access.push_back({from.buffer, from.version, from.offset, from.bytes(), false});
    i.access.push_back({to.buffer, to.version, to.offset, to.bytes(), true});
    i.in.push_back(std::move(from));
    i.out.push_back(std::move(to));
    ++issued_;
  }

  void emit_use_copies(const Use& use, TensorId tensor, const SlotPiece& piece, bool fetch) {
    const Tensor& t = schedule().graph.tensors[tensor];
    const int64_t size = size_of(t.dtype);
    for (const ElementRange& range : (fetch ? piece.fetch : piece.written).ranges()) {
      const Dims dims(range.count());
      const ProgramOperand slot =
          whole(ring_buffer_[use.ring], piece.offset_of(range, size), t.dtype, dims, slot_of(use));
      const ProgramOperand home =
          whole(tensor_buffer(tensor, Tier::host, use.micro), range.begin * size, t.dtype, dims);
      if (fetch)
        emit_copy(Lane::h2d, t.name, home, slot);
      else
        emit_copy(Lane::d2h, t.name, slot, home);
    }
  }

  Affine slot_of(const Use& use) const { return {use.index % rings_.all[use.ring].slots, 0}; }

  // ---- operands -----------------------------------------------------------------------------

  // Where an instance stands: in a buffer of its own, or in a slot of a ring as part of a use.
  struct Stand {
    BufferId buffer = -1;
    Affine version;
    const SlotPiece* piece = nullptr;
  };

  Stand stand_of(const Instance& instance, int32_t use_index, const StagePlan& plan) {
    switch (sequencers_[current_].store(instance)) {
      case Store::fixed:
        return {tensor_buffer(instance.tensor, Tier::device, instance.micro)};
      case Store::input:
        return {input_buffer(schedule().graph.tensors[instance.tensor]),
                micro_batch(instance.micro)};
      case Store::transient:
        return {transient_buffer(instance)};
      case Store::ring: {
        const Use& use = plan.uses[use_index];
        return {ring_buffer_[use.ring], slot_of(use), &use.piece(instance.tensor)};
      }
    }
    return {};
  }

  // Of an item's operand `k`, counting inputs and then outputs.
  Stand stand_of(const StagePlan& plan, const Item& item, int32_t k) {
    return stand_of(plan.operands[item.first + k], plan.use_of[item.first + k], plan);
  }

  BufferId transient_buffer(const Instance& instance) {
    BufferId& known = transient_[InstanceIndex(schedule())(instance)];
    if (known != kNone) return known;
    const Tensor& t = schedule().graph.tensors[instance.tensor];
    return known = add_buffer(
               {.name = name_of_shared(schedule().name,
                                       "." + t.name + of_micro(instance.micro) +
                                           (instance.which == 1 ? " (recomputed)" : "")),
                .place = t.place == "gradient_activations" ? t.place : std::string("transients"),
                .scope = Scope::iteration,
                .bytes = t.bytes(),
                .pinned_region = false});
  }

  ProgramOperand operand(const Instance& instance, const Operand& o, const Stand& stand) const {
    const Tensor& t = schedule().graph.tensors[instance.tensor];
    ProgramOperand p;
    p.buffer = stand.buffer;
    p.version = stand.version;
    p.dtype = t.dtype;
    p.dims = o.count < 0 ? t.dims : Dims(o.count);
    p.accumulate = o.accumulate;
    if (stand.piece == nullptr)
      p.offset = o.begin * size_of(t.dtype);
    else if (p.dims.count() > 0)
      p.offset = stand.piece->offset_of({o.begin, o.begin + p.dims.count()}, size_of(t.dtype));
    return p;
  }

  // A whole tensor that is not in a ring.
  ProgramOperand whole_tensor(const Instance& instance, const StagePlan& plan) {
    return operand(instance, {instance.tensor}, stand_of(instance, kNone, plan));
  }

  // What emit_item does to buffers.
  void outline_item(const StagePlan& plan, const Item& item) {
    const Node& node = *item.node;
    const std::vector<Tensor>& tensors = schedule().graph.tensors;
    SharedUse& shared_use = shared_use_.back();
    types_.clear();
    for (int32_t k = 0; k < item.inputs + item.outputs; ++k) {
      const Instance& instance = plan.operands[item.first + k];
      const Operand& o = k < item.inputs ? node.in[k] : node.out[k - item.inputs];
      const Tensor& t = tensors[instance.tensor];
      const Dims dims = o.count < 0 ? t.dims : Dims(o.count);
      if (k < item.inputs) types_.push_back({t.dtype, dims});
      const BufferId buffer = stand_of(plan, item, k).buffer;
      if (dims.count() > 0) shared_use.add(buffer, issued_, buffers());
    }
    if (node.kind == NodeKind::op)
      if (const BufferId workspace = workspace_of(node); workspace != kNone)
        shared_use.add(workspace, issued_, buffers());
    ++issued_;
  }

  // A buffer for what the op needs with inputs of types_; kNone if that is nothing.
  BufferId workspace_of(const Node& node) {
    if (op_def(node.op).workspace == nullptr) return kNone;
    const int64_t bytes = op_def(node.op).workspace(node.attrs, types_, rules_);
    if (bytes == 0) return kNone;
    return add_buffer({.name = name_of_shared(node.name, " workspace"),
                       .place = "workspace",
                       .scope = Scope::iteration,
                       .bytes = bytes,
                       .pinned_region = false});
  }

  void emit_item(const StagePlan& plan, size_t index) {
    const Item& item = plan.items[index];
    if (outline_) return outline_item(plan, item);
    const Node& node = *item.node;
    Instr& i = program_->instrs.emplace_back();
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
    int32_t at = 0;
    Instance before;  // the pieces of an exchange are of few tensors
    Stand stand;
    const auto add_operand = [&](const Instance& instance, const Operand& o,
                                 std::vector<ProgramOperand>& to) {
      if (instance != before) stand = stand_of(plan, item, at);
      before = instance;
      ++at;
      to.push_back(operand(instance, o, stand));
    };
    i.in.reserve(node.in.size());
    i.out.reserve(node.out.size());
    i.access.reserve(node.in.size() + node.out.size() + 1);
    for (size_t k = 0; k < node.in.size(); ++k) add_operand(plan.in(item)[k], node.in[k], i.in);
    for (size_t k = 0; k < node.out.size(); ++k) add_operand(plan.out(item)[k], node.out[k], i.out);
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
      i.transfers.reserve(node.transfers.size());
      for (const Transfer& t : node.transfers)
        i.transfers.push_back({t.peer, t.send, t.operand, t.count, t.stride, t.same});
    } else if (i.kind == InstrKind::op) {
      i.attrs = static_cast<int32_t>(program_->attrs.size());
      program_->attrs.push_back(node.attrs);
      types_.clear();
      for (const ProgramOperand& o : i.in) types_.push_back({o.dtype, o.dims});
      if (const BufferId workspace = workspace_of(node); workspace != kNone) {
        const int64_t bytes = buffers()[workspace].bytes;
        i.workspace = whole(workspace, 0, Dtype::u8, Dims(bytes));
        i.access.push_back({workspace, {}, 0, bytes, true});
      }
    }
    ++issued_;
  }

  // Only programs show the names of buffers that share bytes.
  std::string name_of_shared(const std::string& base, const std::string& suffix) const {
    return outline_ ? std::string() : base + suffix;
  }

  // ---- stages -------------------------------------------------------------------------------

  void lower_stage(const Stage& stage, const StagePlan& plan, bool first, bool last) {
    micro_base_ = stage.micro_base;
    transient_.assign(InstanceIndex(schedule()).size(), kNone);
    const auto before = fetch_positions(schedule(), rings_, plan);
    std::vector<std::vector<std::pair<int32_t, TensorId>>> after(plan.items.size());  // writebacks
    for (size_t u = 0; u < plan.uses.size(); ++u)
      if (rings_.all[plan.uses[u].ring].has_home)
        for (const auto& [tensor, piece] : plan.uses[u].pieces)
          if (!piece.written.empty())
            after[piece.last_write].push_back({static_cast<int32_t>(u), tensor});

    emit_inputs(plan, first);
    host_scalars_.clear();
    for (size_t p = 0; p < plan.items.size(); ++p) {
      const bool on_host = plan.items[p].node->on_host;
      emit_updated(on_host ? kHostSlots - 1 : 0);
      for (const int32_t u : before[p])
        for (const auto& [tensor, piece] : plan.uses[u].pieces)
          emit_use_copies(plan.uses[u], tensor, piece, true);
      if (on_host)
        emit_host_update(plan.items[p]);
      else
        emit_item(plan, p);
      for (const auto& [u, tensor] : after[p])
        emit_use_copies(plan.uses[u], tensor, plan.uses[u].piece(tensor), false);
    }
    emit_updated(0);
    if (last) emit_outputs(plan);
  }

  void emit_inputs(const StagePlan& plan, bool first) {
    const Graph& g = schedule().graph;
    std::set<Instance> inputs;
    for (const Instance& i : plan.operands)
      if (g.tensors[i.tensor].role == Role::input) inputs.insert({i.tensor, 0, i.micro});
    for (const Instance& input : inputs) {
      const Tensor& t = g.tensors[input.tensor];
      const ProgramOperand device = whole_tensor(input, plan);
      const BufferId host =
          host_io(schedule().name + "." + t.name, t.bytes(), schedule().spec.micro_batches);
      emit_copy(Lane::h2d, t.name, whole(host, 0, t.dtype, t.dims, micro_batch(input.micro)),
                device);
    }
    if (!first) return;
    if (const TensorId id = g.find("scalars"); id != kNone) {
      const Tensor& t = g.tensors[id];
      emit_copy(Lane::h2d, t.name,
                whole(host_io(schedule().name + ".scalars", t.bytes(), 1), 0, t.dtype, t.dims),
                whole_tensor({id, 0}, plan));
    }
  }

  // Scalars after the update; of a program of one stage, what nothing in it reads and no other has.
  void emit_outputs(const StagePlan& plan) {
    const Graph& g = schedule().graph;
    std::vector<bool> read(g.tensors.size(), false), written(g.tensors.size(), false);
    for (const StagePlan& stage : stages_[current_])
      for (const Item& item : stage.items) {
        for (const Instance& i : stage.in(item)) read[i.tensor] = true;
        for (const Instance& i : stage.out(item)) written[i.tensor] = true;
      }
    for (size_t k = 0; k < g.tensors.size(); ++k) {
      if (!written[k]) continue;
      const auto id = static_cast<TensorId>(k);
      const Tensor& t = g.tensors[id];
      const bool updated_scalars = t.name == "scalars";
      const bool result = (t.role == Role::scalar || t.role == Role::activation) && !read[k] &&
                          schedule().stages.size() == 1 &&
                          (t.role == Role::scalar || t.name == "logits");
      if (!updated_scalars && !result) continue;
      const bool borrowed =
          !schedule().borrows.empty() && schedules_[0]->graph.find(t.name) != kNone;
      if (borrowed) continue;
      const std::string name = schedule().name + "." + t.name + (updated_scalars ? ".out" : "");
      emit_copy(Lane::d2h, t.name, whole_tensor({id, 0}, plan),
                whole(host_io(name, t.bytes(), 1), 0, t.dtype, t.dims));
    }
  }

  void collect_homes() {
    current_ = 0;
    const Graph& g = schedule().graph;
    const auto add_at = [&](TensorId id, BufferId buffer, const std::vector<Range>& held,
                            bool copy) {
      int64_t offset = 0;
      for (const Range& r : held) {
        result_.homes.push_back({id, buffer, offset, r.begin, r.count, copy});
        offset += r.count * size_of(g.tensors[id].dtype);
      }
    };
    const auto on_host = [&](TensorId id) { return sequencers_[0].where(id) == Where::host; };
    const auto add = [&](TensorId id, const std::vector<Range>& held) {
      if (id != kNone)
        add_at(id, tensor_buffer(id, on_host(id) ? Tier::host : Tier::device), held, false);
    };
    for (const Param& p : g.params) {
      const std::vector<Range> all = {{0, g.tensors[p.param].dims.count()}};
      const std::vector<Range>& state = p.own.empty() ? all : p.own;
      add(p.home(), p.shard != kNone ? p.own : all);
      add(p.master, state);
      add(p.moment1, state);
      add(p.moment2, state);
      if (schedule().choice.updates_on_host(g.tensors[p.param].layer) && !on_host(p.home()))
        add_at(p.home(), host_copy(p.home(), g.tensors[p.moment1].dims), state, true);
    }
  }

  const Placement& placement_;
  const WorkspaceRules rules_;
  const bool outline_;
  std::vector<SharedUse> shared_use_;  // by program; filled in outlines
  std::vector<Sequencer> sequencers_;
  std::vector<std::vector<StagePlan>> stages_;
  Rings rings_;
  std::vector<BufferId> ring_buffer_;  // by ring
  // Of the schedule and stage being lowered:
  Program* program_ = nullptr;
  int32_t sequence_ = 0, micro_base_ = 0;
  InstrId issued_ = 0;
  std::vector<BufferId> transient_;  // by InstanceIndex; kNone: none yet
  std::vector<TensorType> types_;    // of one op's inputs
  // Of updates on the host:
  BufferId host_gradients_ = kNone;
  int32_t host_updates_ = 0;         // that had their gradient copied
  std::set<TensorId> host_scalars_;  // that this stage has copied
  struct Updated {
    std::string name;
    ProgramOperand from, to;
  };
  std::vector<Updated> to_device_;  // parameters, in order of their updates
  size_t updated_ = 0;              // of them, on their way
};

}  // namespace

Lowered lower(const std::vector<const Schedule*>& schedules, const Placement& placement,
              const WorkspaceRules& rules, int64_t staging_bytes) {
  return Lowering(schedules, placement, rules, false).run(staging_bytes);
}

Outline outline(const std::vector<const Schedule*>& schedules, const Placement& placement,
                const WorkspaceRules& rules, int64_t staging_bytes) {
  Lowering lowering(schedules, placement, rules, true);
  Lowered lowered = lowering.run(staging_bytes);
  return {std::move(lowered.set.buffers), lowering.take_shared_use(), std::move(lowered.homes),
          std::move(lowered.io)};
}

}  // namespace spillway
