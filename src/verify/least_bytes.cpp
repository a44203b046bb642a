// Bytes that no placement changes. Of what may share bytes only the most that lives at once counts,
// of what only passes through rings the fewest slots.
#include <algorithm>
#include <set>

#include "verify/stays.h"
#include "verify/step_work.h"

namespace spillway::verify_detail {
namespace {

constexpr int64_t kAlign = 256;
constexpr int64_t kInputSlots = 2;  // groups of micro-batches of tokens on the device at once

int64_t aligned(int64_t bytes) {
  return (std::max<int64_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
}

class Counting {
 public:
  explicit Counting(const WorkspaceRules& rules) : rules_(rules) {}

  // A schedule that the run needs. The first one's scalars are the run's.
  void add(const Schedule& schedule) {
    const Storage storage(schedule);
    const auto stays = stays_of(schedule, storage);
    for (size_t s = 0; s < schedule.stages.size(); ++s) {
      shared_ = std::max(shared_, live_at_once(schedule, storage, schedule.stages[s]));
      count_rings(schedule, stays[s]);
    }
    count_own(schedule);
  }

  int64_t device() const {
    int64_t bytes = own_ + shared_;
    for (const auto& [ring, slots] : rings_) bytes += aligned(slots.second) * slots.first;
    return bytes;
  }
  int64_t host() const { return host_; }

 private:
  // The most bytes of transients and workspaces that are alive at one visit.
  int64_t live_at_once(const Schedule& schedule, const Storage& storage, const Stage& stage) const {
    const Graph& g = schedule.graph;
    std::map<std::pair<TensorId, int32_t>, std::pair<size_t, size_t>> lives;
    std::vector<int64_t> workspace(stage.visits.size(), 0);
    for (size_t v = 0; v < stage.visits.size(); ++v) {
      const Visit& visit = stage.visits[v];
      const Node& node = g.nodes[visit.node];
      for (const std::vector<Operand>* operands : {&node.in, &node.out})
        for (const Operand& o : *operands) {
          const TensorId t = storage.root(o.tensor);
          if (!storage.transient(t) || o.count == 0) continue;
          lives.try_emplace({t, visit.micro}, v, v).first->second.second = v;
        }
      if (node.kind != NodeKind::op || op_def(node.op).workspace == nullptr) continue;
      std::vector<TensorType> types;
      for (const Operand& o : node.in)
        types.push_back(
            {g.tensors[o.tensor].dtype, o.count < 0 ? g.tensors[o.tensor].dims : Dims(o.count)});
      if (const int64_t bytes = op_def(node.op).workspace(node.attrs, types, rules_); bytes > 0)
        workspace[v] = aligned(bytes);
    }
    std::vector<int64_t> change(stage.visits.size() + 1, 0);
    for (const auto& [instance, life] : lives) {
      const int64_t bytes = aligned(g.tensors[instance.first].bytes());
      change[life.first] += bytes;
      change[life.second + 1] -= bytes;
    }
    int64_t live = 0, most = 0;
    for (size_t v = 0; v < stage.visits.size(); ++v)
      most = std::max(most, (live += change[v]) + workspace[v]);
    return most;
  }

  // Rings of what has no home: as many slots as stays overlap, of the largest stay's bytes.
  void count_rings(const Schedule& schedule, const std::vector<Stay>& stays) {
    std::map<std::string, std::vector<const Stay*>> of_ring;
    const Storage storage(schedule);
    for (const Stay& stay : stays)
      if (storage.homeless(stay.parts.begin()->first)) of_ring[stay.ring].push_back(&stay);
    for (const auto& [ring, list] : of_ring) {
      size_t slots = 1;
      for (size_t i = slots; i < list.size();)
        if (list[i]->first <= list[i - slots]->last)
          i = ++slots;
        else
          ++i;
      auto& [most, bytes] = rings_[ring];
      most = std::max(most, static_cast<int64_t>(slots));
      for (const Stay* stay : list) bytes = std::max(bytes, stay->slot_bytes);
    }
  }

  // Tokens and targets on both tiers, scalars, and of these what the host gives and gets.
  void count_own(const Schedule& schedule) {
    const Graph& g = schedule.graph;
    std::set<TensorId> touched, read;
    for (const Stage& stage : schedule.stages)
      for (const Visit& visit : stage.visits) {
        const Node& node = g.nodes[visit.node];
        for (const Operand& o : node.in) read.insert(o.tensor);
        for (const Operand& o : node.out) touched.insert(o.tensor);
      }
    touched.insert(read.begin(), read.end());
    const bool one_stage = schedule.stages.size() == 1;
    for (const TensorId id : touched) {
      const Tensor& t = g.tensors[id];
      const int64_t bytes = aligned(t.bytes());
      if (t.role == Role::scalar) {
        own_ += bytes;
        if (t.name == "scalars") host_ += 2 * bytes;
        if (one_stage && !read.contains(id)) host_ += bytes;
      }
      if (t.role != Role::input) continue;
      own_ += bytes * kInputSlots * schedule.choice.group;
      host_ += bytes * schedule.spec.micro_batches;
    }
  }

  WorkspaceRules rules_;
  int64_t own_ = 0, shared_ = 0, host_ = 0;
  std::map<std::string, std::pair<int64_t, int64_t>> rings_;  // slots, bytes of one
};

}  // namespace

std::pair<double, double> least_bytes(const CertificateInput& input, int32_t group) {
  ScheduleChoice choice;
  choice.group = group;
  choice.reduce_delay = choice.gather_ahead = 0;
  choice.zero = input.zero;
  Counting counting(input.rules);
  counting.add(input.train->get(choice));
  if (input.evaluate != nullptr) counting.add(input.evaluate->get(choice));
  return {static_cast<double>(counting.device()),
          static_cast<double>(counting.host() + input.staging_bytes)};
}

}  // namespace spillway::verify_detail
