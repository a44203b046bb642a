// Executes the nodes of schedules one by one on plain heap tensors, each tensor with its own bytes
// except where an op declares that its output takes over an input's. For comparing whole models;
// slow, and free of every stage that comes after the schedule.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "graph/graph.h"
#include "graph/op.h"
#include "parallel/schedule.h"

namespace spillway::golden {

inline float bf16_to_float(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}
inline uint16_t float_to_bf16(float value) {  // nearest, ties to even; finite values only
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

class Interpreter {
 public:
  using KernelTable = Kernel (*)(OpKind);

  // `all_f64`: every float tensor is f64, as the reference kernels want. New bytes are 0xFF (NaN).
  Interpreter(const Schedule& schedule, KernelTable table, bool all_f64, int threads = 1)
      : schedule_(schedule), table_(table), all_f64_(all_f64), threads_(threads) {
    const Graph& g = schedule_.graph;
    storage_.resize(g.tensors.size() * schedule_.choice.group);
    root_.resize(g.tensors.size());
    for (size_t t = 0; t < g.tensors.size(); ++t) root_[t] = static_cast<TensorId>(t);
    for (const Node& node : g.nodes)
      for (const auto& [out, in] : node.alias)
        root_[node.out[out].tensor] = root_[node.in[in].tensor];
    for (size_t t = 0; t < g.tensors.size(); ++t) {
      const int64_t bytes = g.tensors[t].dims.count() * size_of(dtype(static_cast<TensorId>(t)));
      const size_t words = static_cast<size_t>(ceil_div(bytes, 64) * 8);
      for (micro_ = schedule_.choice.group; micro_-- > 0;) {
        std::vector<uint64_t>& own = storage(static_cast<TensorId>(t));
        if (own.size() < words) own.assign(words, ~uint64_t{0});
      }
      micro_ = 0;
    }
  }

  // The micro-batch of the group whose inputs and activations are meant from here on.
  void select(int32_t micro) { micro_ = micro; }

  Dtype dtype(TensorId id) const {
    const Dtype d = schedule_.graph.tensors[id].dtype;
    return all_f64_ && (d == Dtype::f32 || d == Dtype::bf16) ? Dtype::f64 : d;
  }
  TensorId id(const std::string& name) const {
    const TensorId result = schedule_.graph.find(name);
    if (result == kNone) internal_error("no tensor {}", name);
    return result;
  }
  template <class T>
  T* data(const std::string& name) {
    return reinterpret_cast<T*>(storage(id(name)).data());
  }

  void set(const std::string& name, const std::vector<double>& values, int64_t begin = 0) {
    const TensorId t = id(name);
    uint8_t* base = bytes_at(t, begin);
    for (size_t i = 0; i < values.size(); ++i) {
      switch (dtype(t)) {
        case Dtype::f64:
          reinterpret_cast<double*>(base)[i] = values[i];
          break;
        case Dtype::f32:
          reinterpret_cast<float*>(base)[i] = static_cast<float>(values[i]);
          break;
        case Dtype::bf16:
          reinterpret_cast<uint16_t*>(base)[i] = float_to_bf16(static_cast<float>(values[i]));
          break;
        case Dtype::i32:
          reinterpret_cast<int32_t*>(base)[i] = static_cast<int32_t>(values[i]);
          break;
        case Dtype::u8:
          base[i] = static_cast<uint8_t>(values[i]);
          break;
      }
    }
  }
  std::vector<double> get(const std::string& name) {
    const TensorId t = id(name);
    std::vector<double> values(schedule_.graph.tensors[t].dims.count());
    const uint8_t* base = bytes_at(t, 0);
    for (size_t i = 0; i < values.size(); ++i) {
      switch (dtype(t)) {
        case Dtype::f64:
          values[i] = reinterpret_cast<const double*>(base)[i];
          break;
        case Dtype::f32:
          values[i] = reinterpret_cast<const float*>(base)[i];
          break;
        case Dtype::bf16:
          values[i] = bf16_to_float(reinterpret_cast<const uint16_t*>(base)[i]);
          break;
        case Dtype::i32:
          values[i] = reinterpret_cast<const int32_t*>(base)[i];
          break;
        case Dtype::u8:
          values[i] = base[i];
          break;
      }
    }
    return values;
  }

  TensorArg argument(const Operand& operand) {
    const Tensor& t = schedule_.graph.tensors[operand.tensor];
    const bool whole = operand.count < 0;
    return {bytes_at(operand.tensor, operand.begin), dtype(operand.tensor),
            whole ? t.dims : Dims(operand.count)};
  }

  void run(const Node& node, bool accumulate, int32_t micro) {
    KernelArgs args;
    if (node.kind == NodeKind::copy) {
      const TensorArg from = argument(node.in[0]), to = argument(node.out[0]);
      std::memcpy(to.data, from.data, static_cast<size_t>(from.dims.count() * size_of(from.dtype)));
      return;
    }
    std::vector<TensorType> types;
    for (const Operand& in : node.in) {
      args.in[args.in_count] = argument(in);
      types.push_back({args.in[args.in_count].dtype, args.in[args.in_count].dims});
      ++args.in_count;
    }
    for (const Operand& out : node.out) args.out[args.out_count++] = argument(out);
    const OpDef& def = op_def(node.op);
    std::vector<uint64_t> workspace;
    if (!all_f64_ && def.workspace != nullptr) {
      args.workspace_bytes = def.workspace(node.attrs, types, {.threads = threads_});
      workspace.assign(static_cast<size_t>(args.workspace_bytes) / 8 + 16, ~uint64_t{0});
      const auto address = reinterpret_cast<uintptr_t>(workspace.data());
      args.workspace = reinterpret_cast<void*>(round_up(static_cast<int64_t>(address), 64));
    }
    args.attrs = &node.attrs;
    for (const Operand& out : node.out) args.accumulate |= accumulate && out.accumulate;
    args.micro = micro;
    table_(node.op)(args);
  }

  const Schedule& schedule() const { return schedule_; }

 private:
  uint8_t* bytes_at(TensorId t, int64_t begin) {
    return reinterpret_cast<uint8_t*>(storage(t).data()) + begin * size_of(dtype(t));
  }
  std::vector<uint64_t>& storage(TensorId t) {
    const Role role = schedule_.graph.tensors[t].role;
    int32_t copy = 0;
    if (role == Role::input || role == Role::activation || role == Role::staging ||
        role == Role::node_staging)
      copy = micro_;
    if (role == Role::partial_grad) copy = micro_ / schedule_.spec.reduce_every;
    return storage_[root_[t] * schedule_.choice.group + copy];
  }

  const Schedule& schedule_;
  KernelTable table_;
  bool all_f64_;
  int threads_;
  int32_t micro_ = 0;
  std::vector<std::vector<uint64_t>> storage_;  // of alias roots, by micro-batch of the group
  std::vector<TensorId> root_;
};

// visit(peer, operand) for each message of an exchange that is sent, or received.
template <class Visit>
void each_message(const Node& exchange, bool sent, const Visit& visit) {
  for (const Transfer& t : exchange.transfers) {
    if (t.send != sent) continue;
    Operand o = (sent ? exchange.in : exchange.out)[t.operand];
    if (!t.same) o.count /= t.count;
    for (int32_t k = 0; k < t.count; ++k, o.begin += t.same ? 0 : o.count)
      visit(t.peer + k * t.stride, o);
  }
}

// One step on all ranks in one thread: every rank runs to its next exchange, then the exchange
// moves bytes; the i-th send of a rank to a peer meets that peer's i-th receive from it.
// `load(rank, micro)` fills the inputs of a micro-batch.
template <class Load>
void run_step(std::vector<Interpreter>& ranks, const Load& load) {
  struct Cursor {
    size_t stage = 0, node = 0;
    int32_t iteration = 0;
    const Node* exchange = nullptr;
  };
  std::vector<Cursor> cursors(ranks.size());
  const auto advance = [&](size_t rank) {
    Cursor& at = cursors[rank];
    at.exchange = nullptr;
    const Schedule& schedule = ranks[rank].schedule();
    for (; at.stage < schedule.stages.size(); ++at.stage, at.iteration = 0) {
      const Stage& stage = schedule.stages[at.stage];
      const bool update = stage.name == "update";
      for (; at.iteration < stage.trip; ++at.iteration, at.node = 0) {
        const int32_t group = schedule.choice.group;
        const int32_t base = stage.micro_base + at.iteration * group;
        for (int32_t m = 0; m < group && at.node == 0 && !update; ++m) {
          ranks[rank].select(m);
          load(static_cast<int>(rank), base + m);
        }
        while (at.node < stage.visits.size()) {
          const Visit& visit = stage.visits[at.node++];
          const Node& node = schedule.graph.nodes[visit.node];
          ranks[rank].select(visit.micro);
          if (node.kind == NodeKind::exchange) {
            at.exchange = &node;
            return;
          }
          ranks[rank].run(node, visit.accumulate, base + visit.micro);
        }
      }
    }
  };
  for (;;) {
    for (size_t rank = 0; rank < ranks.size(); ++rank) advance(rank);
    if (cursors[0].exchange == nullptr) break;
    std::map<std::pair<int, int>, std::vector<TensorArg>> sent;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      if (cursors[rank].exchange == nullptr)
        internal_error("rank {} has no exchange where rank 0 has {}", rank,
                       cursors[0].exchange->name);
      each_message(*cursors[rank].exchange, true, [&](int peer, const Operand& o) {
        sent[{static_cast<int>(rank), peer}].push_back(ranks[rank].argument(o));
      });
    }
    std::map<std::pair<int, int>, size_t> taken;
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      each_message(*cursors[rank].exchange, false, [&](int peer, const Operand& o) {
        const std::pair<int, int> key{peer, static_cast<int>(rank)};
        const TensorArg to = ranks[rank].argument(o);
        if (taken[key] >= sent[key].size())
          internal_error("{}: rank {} waits for a send of rank {}", cursors[rank].exchange->name,
                         rank, peer);
        const TensorArg from = sent[key][taken[key]++];
        if (from.dims.count() != to.dims.count() || from.dtype != to.dtype)
          internal_error("{}: rank {} expects {} elements, rank {} sends {}",
                         cursors[rank].exchange->name, rank, to.dims.count(), peer,
                         from.dims.count());
        std::memcpy(to.data, from.data, from.dims.count() * size_of(from.dtype));
      });
    for (const auto& [key, parts] : sent)
      if (taken[key] != parts.size())
        internal_error("a send of rank {} to rank {} is never received", key.first, key.second);
  }
}

}  // namespace spillway::golden
