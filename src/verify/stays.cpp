#include "verify/stays.h"

#include <algorithm>
#include <tuple>

namespace spillway::verify_detail {

Spans united(const Spans& a, const Spans& b) {
  Spans all = a, result;
  all.insert(all.end(), b.begin(), b.end());
  std::sort(all.begin(), all.end());
  for (const auto& [begin, end] : all) {
    if (begin >= end) continue;
    if (!result.empty() && begin <= result.back().second)
      result.back().second = std::max(result.back().second, end);
    else
      result.emplace_back(begin, end);
  }
  return result;
}

Spans without(const Spans& a, const Spans& b) {
  Spans result;
  for (auto [begin, end] : a) {
    for (const auto& [from, to] : b) {
      if (to <= begin || from >= end) continue;
      if (from > begin) result.emplace_back(begin, from);
      begin = std::max(begin, to);
    }
    if (begin < end) result.emplace_back(begin, end);
  }
  return result;
}

int64_t elements(const Spans& spans) {
  int64_t sum = 0;
  for (const auto& [begin, end] : spans) sum += end - begin;
  return sum;
}

Work work_of(Pass pass) {
  if (pass == Pass::update) return Work::update;
  return pass == Pass::forward ? Work::forward : Work::backward;
}

Storage::Storage(const Schedule& schedule)
    : schedule_(schedule), saved_(schedule.graph.tensors.size(), false) {
  const Graph& g = schedule.graph;
  std::vector<bool> made(g.tensors.size(), false);
  for (size_t t = 0; t < g.tensors.size(); ++t) root_.push_back(static_cast<TensorId>(t));
  for (const Node& node : g.nodes) {
    for (const auto& [out, in] : node.alias)
      if (node.out[out].tensor != node.in[in].tensor)
        root_[node.in[in].tensor] = node.out[out].tensor;
    if (node.pass == Pass::forward)
      for (const Operand& o : node.out)
        made[o.tensor] = g.tensors[o.tensor].role == Role::activation;
  }
  for (const Node& node : g.nodes)
    if (node.pass == Pass::backward)
      for (const Operand& o : node.in)
        if (made[o.tensor]) saved_[o.tensor] = true;
  for (TensorId& root : root_)
    while (root != root_[root]) root = root_[root];
}

int32_t Storage::micro(TensorId t, int32_t of_group) const {
  switch (schedule_.graph.tensors[t].role) {
    case Role::input:
    case Role::activation:
    case Role::staging:
    case Role::node_staging:
      return of_group;
    case Role::partial_grad:
      return of_group / schedule_.spec.reduce_every;
    default:
      return 0;
  }
}

bool Storage::chosen(TensorId t) const {
  switch (schedule_.graph.tensors[t].role) {
    case Role::param:
    case Role::master:
    case Role::moment:
    case Role::grad:
      return true;
    case Role::activation:
      return saved_[t];
    default:
      return false;
  }
}

bool Storage::homeless(TensorId t) const {
  const Role role = schedule_.graph.tensors[t].role;
  return role == Role::staging || role == Role::node_staging || role == Role::gathered ||
         role == Role::partial_grad;
}

bool Storage::transient(TensorId t) const {
  return schedule_.graph.tensors[t].role == Role::activation && !saved_[t];
}

int64_t aligned(int64_t bytes) {
  constexpr int64_t kAlign = 256;
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

namespace {

// Updates share the rings of the blocks; vocabulary tables have rings of their own in the passes.
std::string ring_of(const Graph& g, const Tensor& t, Work work) {
  switch (t.role) {
    case Role::activation:
    case Role::staging:
      return t.place;
    case Role::node_staging:
      return t.place + "/nodes";
    default:
      break;
  }
  const bool block = t.layer > 0 && t.layer <= g.layers;
  if (block || work == Work::update) return t.place + "/block";
  return t.place + (t.layer > g.layers ? "/head" : "/embedding");
}

// Visits that share a stay: those of one layer's activations in one pass; of one unit in sums and
// updates; of one layer's parameters or gradients by nodes of one layer in one pass. What a rotated
// update writes of a block's parameters stays for the forward pass after it.
using StayKey = std::tuple<std::string, int32_t, Work, int32_t, int32_t>;

StayKey key_of(const Graph& g, const Tensor& t, const Node& node, int32_t micro, bool rotated) {
  const Work work = work_of(node.pass);
  std::string ring = ring_of(g, t, work);
  if (t.role == Role::staging || t.role == Role::node_staging)
    return {std::move(ring), node.unit, work, 0, micro};
  if (t.role == Role::activation || t.role == Role::partial_grad)
    return {std::move(ring), t.layer, work, 0, micro};
  const bool block = t.layer > 0 && t.layer <= g.layers;
  if (work == Work::update && rotated && block && t.role == Role::param)
    return {std::move(ring), t.layer, Work::forward, t.layer, micro};
  if (work == Work::update) return {std::move(ring), node.unit, work, 0, micro};
  return {std::move(ring), t.layer, work, node.layer, micro};
}

class StageStays {
 public:
  StageStays(const Schedule& schedule, const Storage& storage, const Stage& stage)
      : graph_(schedule.graph), storage_(storage), stage_(stage) {
    for (const Visit& visit : stage.visits)
      forward_ |= graph_.nodes[visit.node].pass == Pass::forward;
  }

  std::vector<Stay> find() {
    for (size_t v = 0; v < stage_.visits.size(); ++v) {
      const Visit& visit = stage_.visits[v];
      const Node& node = graph_.nodes[visit.node];
      for (const Operand& o : node.in) touch(static_cast<int32_t>(v), visit, o, true, false);
      for (const Operand& o : node.out)
        touch(static_cast<int32_t>(v), visit, o, o.accumulate && visit.accumulate, true);
    }
    for (Stay& stay : stays_)
      for (auto& [tensor, part] : stay.parts)
        for (const auto& [begin, end] : part.held) {
          const int64_t bytes = (end - begin) * size_of(graph_.tensors[tensor].dtype);
          stay.slot_bytes += aligned(bytes);
        }
    return std::move(stays_);
  }

 private:
  void touch(int32_t v, const Visit& visit, const Operand& operand, bool read, bool write) {
    const TensorId id = storage_.root(operand.tensor);
    if (!storage_.chosen(id) && !storage_.homeless(id)) return;
    const Tensor& t = graph_.tensors[id];
    const int32_t micro = storage_.micro(id, visit.micro);
    const auto [it, fresh] = index_.try_emplace(
        key_of(graph_, t, graph_.nodes[visit.node], micro, forward_), stays_.size());
    if (fresh) {
      stays_.emplace_back();
      stays_.back().ring = std::get<0>(it->first);
      stays_.back().micro = micro;
      stays_.back().first = v;
    }
    Stay& stay = stays_[it->second];
    stay.last = v;
    const int64_t count = operand.count < 0 ? t.dims.count() : operand.count;
    const Spans touched = {{operand.begin, operand.begin + count}};
    Part& part = stay.parts[id];
    part.held = united(part.held, touched);
    if (read) part.fetched = united(part.fetched, without(touched, part.returned));
    if (!write || count == 0) return;
    part.returned = united(part.returned, touched);
    part.last_write = v;
  }

  const Graph& graph_;
  const Storage& storage_;
  const Stage& stage_;
  bool forward_ = false;  // updates of this stage are rotated ones
  std::vector<Stay> stays_;
  std::map<StayKey, size_t> index_;
};

// Whether what a stay in stage `from` writes is still there for a stay of stage `to` to fetch.
bool reaches(const Schedule& schedule, const Stay& writer, size_t from, const Stay& reader,
             size_t to, Role role) {
  if (writer.micro != reader.micro || to < from) return false;
  if (to > from) return role != Role::activation;
  return reader.first > writer.last || schedule.stages[from].trip > 1;
}

}  // namespace

std::vector<std::vector<Stay>> stays_of(const Schedule& schedule, const Storage& storage) {
  const Graph& g = schedule.graph;
  std::vector<std::vector<Stay>> stages;
  for (const Stage& stage : schedule.stages)
    stages.push_back(StageStays(schedule, storage, stage).find());
  std::map<TensorId, std::vector<std::pair<size_t, const Stay*>>> readers;
  for (size_t s = 0; s < stages.size(); ++s)
    for (const Stay& stay : stages[s])
      for (const auto& [tensor, part] : stay.parts)
        if (!part.fetched.empty()) readers[tensor].emplace_back(s, &stay);
  // Gradients and activations are returned as far as a later stay fetches them.
  for (size_t s = 0; s < stages.size(); ++s)
    for (Stay& stay : stages[s])
      for (auto& [tensor, part] : stay.parts) {
        const Tensor& t = g.tensors[tensor];
        if (part.returned.empty() || t.carried ||
            (t.role != Role::grad && t.role != Role::activation))
          continue;
        Spans wanted;
        for (const auto& [to, reader] : readers[tensor])
          if (reaches(schedule, stay, s, *reader, to, t.role))
            wanted = united(wanted, reader->parts.at(tensor).fetched);
        part.returned = without(part.returned, without(part.returned, wanted));
      }
  return stages;
}

}  // namespace spillway::verify_detail
