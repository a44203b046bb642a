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
  explicit ScheduleNodes(const ParallelSpec& spec) : spec_(spec), levels_(exchange_levels(spec)) {}

  Graph& graph() { return schedule_.graph; }
  const Tensor& tensor(TensorId id) const { return schedule_.graph.tensors[id]; }
  int64_t total(const Param& p) const { return tensor(p.param).dims.count(); }
  int64_t total_of(const Piece& piece) const { return total(schedule_.graph.params[piece.param]); }
  const std::string& name(const Param& p) const { return tensor(p.param).name; }
  bool several_ranks() const { return spec_.ranks > 1; }
  // The micro-batches of a reduction visit a layer together, so that its accumulators die there:
  // where gradients are sharded, and where a group holds several reductions, each with its own.
  bool short_lived_accumulators(int32_t layer) const {
    const int32_t group = schedule_.choice.group, every = spec_.reduce_every;
    return group % every == 0 && (group > every || schedule_.shards_gradients(layer));
  }
  bool separate_sum(int32_t layer) const {
    return spec_.reduce_every < spec_.micro_batches || short_lived_accumulators(layer);
  }
  // Every rank's sums come to every rank.
  bool gathers_sums(int32_t layer) const {
    return several_ranks() && !schedule_.shards_state(layer);
  }
  // … and the accumulators are gone by then.
  bool whole_sums(int32_t layer) const {
    return gathers_sums(layer) && short_lived_accumulators(layer);
  }
  int32_t layer_of(const Piece& piece) const {
    return tensor(schedule_.graph.params[piece.param].param).layer;
  }
  // Of the parts that member `member` of a level stands for.
  Range part(const Piece& piece, const Level& level, int32_t member) const {
    return part_of_places(piece, total_of(piece), spec_.ranks, level.place_of(member),
                          level.places);
  }
  Range own_part(const Piece& piece) const {
    return owned_part(piece, total_of(piece), spec_, spec_.rank);
  }
  Range every_part(const Piece& piece) const {
    return part_of_places(piece, total_of(piece), spec_.ranks, 0, spec_.ranks);
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

  // Everyone's part of each piece comes to everyone, in the tensor that `whole` gives for it and
  // where the own part stands already.
  template <class Whole>
  std::vector<Node> gather(const Unit& unit, const std::string& name, const Whole& whole) const {
    std::vector<Node> nodes;
    for (size_t l = levels_.size(); l-- > 0;) {
      Node node = exchange_node(unit_name(unit) + name + (l > 0 ? ".across_nodes" : ""));
      for (const Piece& piece : unit.pieces)
        gather_piece(node, piece, total_of(piece), spec_.ranks, levels_[l], whole(piece));
      nodes.push_back(std::move(node));
    }
    return nodes;
  }

  ParallelSpec spec_;
  std::vector<Level> levels_;
  Schedule schedule_;
  int32_t unit_ = kNone;  // that the nodes being added belong to
};

}  // namespace spillway
