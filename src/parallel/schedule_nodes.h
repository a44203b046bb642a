// What the train schedule's nodes are made of: the layout of state over ranks, and how parts of it
// travel.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "parallel/exchange.h"
#include "parallel/schedule.h"
#include "parallel/units.h"

namespace spillway {

class ScheduleNodes {
 protected:
  explicit ScheduleNodes(const ParallelSpec& spec) : spec_(spec) {}

  Graph& graph() { return schedule_.graph; }
  const Tensor& tensor(TensorId id) const { return schedule_.graph.tensors[id]; }
  int64_t total(const Param& p) const { return tensor(p.param).dims.count(); }
  const std::string& name(const Param& p) const { return tensor(p.param).name; }
  bool several_ranks() const { return spec_.ranks > 1; }
  // The micro-batches of a reduction visit a layer together, so that its accumulators die there:
  // where gradients are sharded, and where a group holds several reductions, each with its own.
  bool short_lived_accumulators() const {
    const int32_t group = schedule_.choice.group, every = spec_.reduce_every;
    return group % every == 0 && (group > every || spec_.shards_gradients());
  }
  bool separate_sum() const {
    return spec_.reduce_every < spec_.micro_batches || short_lived_accumulators();
  }
  // Every rank's sums come to every rank, and the accumulators are gone by then.
  bool whole_sums() const {
    return several_ranks() && !spec_.shards_state() && short_lived_accumulators();
  }
  Range own_shard(const Param& p) const { return shard_of(total(p), spec_.rank, spec_.ranks); }
  Range part(const Piece& piece, int rank) const {
    return owned_part(piece, total(schedule_.graph.params[piece.param]), rank, spec_.ranks);
  }

  TensorId add_tensor(const std::string& name, const std::string& place, Role role, Dtype dtype,
                      Dims dims, int32_t layer) {
    Tensor t;
    t.name = name;
    t.place = place;
    t.dtype = dtype;
    t.dims = dims;
    t.role = role;
    t.layer = layer;
    return graph().add(std::move(t));
  }

  NodeId add_node(Node node, Pass pass, int32_t layer) {
    node.pass = pass;
    node.layer = layer;
    node.unit = unit_;
    graph().nodes.push_back(std::move(node));
    return static_cast<NodeId>(graph().nodes.size()) - 1;
  }

  static Node op_node(const std::string& name, OpKind op) {
    Node node;
    node.name = name;
    node.op = op;
    return node;
  }

  static Operand range(TensorId id, int64_t begin, int64_t count) { return {id, begin, count}; }

  std::vector<int> peers() const { return peers_of(spec_.rank, spec_.ranks); }

  std::string unit_name(const Unit& unit) const {
    const Piece& first = unit.pieces.front();
    std::string base = name(schedule_.graph.params[first.param]);
    if (unit.layer >= 1 && unit.layer <= schedule_.graph.layers)
      base = "blk." + std::to_string(unit.layer - 1);
    return first.begin == 0 ? base : base + "+" + std::to_string(first.begin);
  }

  std::string piece_name(const Piece& piece) const {
    const std::string& base = name(schedule_.graph.params[piece.param]);
    return piece.begin == 0 ? base : base + "+" + std::to_string(piece.begin);
  }

  // Everyone's part of a piece comes to everyone: `own` is sent, the others arrive in `whole`.
  void gather_piece(Node& node, const Piece& piece, Operand own, TensorId whole) const {
    if (own.count > 0) send(node, own, peers());
    for (int peer : peers()) {
      const Range theirs = part(piece, peer);
      if (theirs.count > 0) receive(node, range(whole, theirs.begin, theirs.count), peer);
    }
  }

  ParallelSpec spec_;
  Schedule schedule_;
  int32_t unit_ = kNone;  // that the nodes being added belong to
};

}  // namespace spillway
