#include "parallel/rank_sums.h"

#include <utility>

namespace spillway {

Operand RankSums::summed(const Piece& piece) const {
  const Range own = own_part(piece);
  const int32_t layer = layer_of(piece);
  if (!separate_sum(layer))
    return range(schedule_.graph.params[piece.param].grads[0], own.begin, own.count);
  return range(reduced_[piece.param], whole_sums(layer) ? own.begin : piece.begin, own.count);
}

TensorId RankSums::updated_from(int32_t param) const {
  const int32_t layer = tensor(schedule_.graph.params[param].param).layer;
  const bool reduced = gathers_sums(layer) ? whole_sums(layer) : separate_sum(layer);
  return reduced ? reduced_[param] : schedule_.graph.params[param].grads[0];
}

RankSums::UnitSteps RankSums::unit_steps(const Unit& unit) {
  UnitSteps steps;
  add_uses(unit, steps);
  TensorId staging = kNone;
  if (several_ranks()) staging = add_sum_exchange(unit, steps);
  if (spec_.two_levels())
    add_node_sums(unit, staging, steps);
  else if (several_ranks() || separate_sum(unit.layer))
    add_rank_sums(unit, staging, steps);
  add_norm_partials(unit, steps);
  if (gathers_sums(unit.layer)) add_gradient_gather(unit, steps);
  return steps;
}

void RankSums::add_gradient_gather(const Unit& unit, UnitSteps& steps) {
  const auto whole = [&](const Piece& piece) { return updated_from(piece.param); };
  for (const Piece& piece : unit.pieces) {
    const Operand sum = summed(piece);
    if (sum.count == 0 || sum.tensor == whole(piece)) continue;
    Node copy;
    copy.kind = NodeKind::copy;
    copy.name = piece_name(piece) + ".own_sum";
    copy.in = {sum};
    copy.out = {range(whole(piece), own_part(piece).begin, sum.count)};
    steps.finish_step.push_back(add_node(std::move(copy), Pass::reduce, unit.layer));
  }
  for (Node& node : gather(unit, ".gather_gradients", whole))
    steps.finish_step.push_back(add_node(std::move(node), Pass::reduce, unit.layer));
}

void RankSums::add_uses(const Unit& unit, UnitSteps& steps) {
  for (const Piece& piece : unit.pieces) {
    const Param p = graph().params[piece.param];
    for (size_t use = 1; use < p.grads.size(); ++use) {
      const Range r = every_part(piece);
      Node node = op_node(tensor(p.grads[use]).name + ".add", OpKind::add);
      node.in = {range(p.grads[0], r.begin, r.count), range(p.grads[use], r.begin, r.count)};
      node.out = {node.in[0]};
      steps.send.push_back(add_node(std::move(node), Pass::reduce, unit.layer));
    }
  }
}

int64_t RankSums::capacity(const Unit& unit, int64_t parts) {
  int64_t elements = 0;
  for (const Piece& piece : unit.pieces) elements += piece.count * parts;
  return elements;
}

TensorId RankSums::add_sum_exchange(const Unit& unit, UnitSteps& steps) {
  const Level& level = levels_.front();
  const TensorId staging =
      add_tensor(unit_name(unit) + ".staging", "comm_staging", Role::staging, Dtype::f32,
                 Dims(capacity(unit, int64_t{level.places} * (level.width() - 1))), unit.layer);
  Node node = exchange_node(unit_name(unit) + ".exchange_gradients");
  int64_t at = 0;
  for (const Piece& piece : unit.pieces)
    at = exchange_piece(node, piece, level, graph().params[piece.param].grads[0], 0, staging, at);
  steps.send.push_back(add_node(std::move(node), Pass::reduce, unit.layer));
  return staging;
}

int64_t RankSums::exchange_piece(Node& node, const Piece& piece, const Level& level, TensorId from,
                                 int64_t shift, TensorId to, int64_t at) const {
  const Range own = part(piece, level, level.own);
  const int32_t even = even_members(piece, total_of(piece), spec_.ranks, level);
  send_each(node, from, one_each(level, even, [&](int32_t member) {
              const Range theirs = part(piece, level, member);
              return Range{theirs.begin - shift, theirs.count};
            }));
  receive_each(node, to, one_each(level, level.width(), [&](int32_t member) {
                 return Range{at + own.count * (member - (member > level.own)), own.count};
               }));
  return at + own.count * (level.width() - 1);
}

Node RankSums::level_sum(const Piece& piece, const Level& level, Operand own, TensorId staging,
                         int64_t& at) const {
  Node node = op_node(piece_name(piece) + ".rank_sum", OpKind::rank_sum);
  node.attrs.ranks = level.width();
  node.attrs.rank = level.own;
  node.attrs.inner = level.inner;
  const int64_t staged = own.count * (level.width() - 1);
  node.in.push_back(own);
  if (several_ranks()) node.in.push_back(range(staging, at, staged));
  at += staged;
  return node;
}

void RankSums::add_rank_sums(const Unit& unit, TensorId staging, UnitSteps& steps) {
  int64_t at = 0;
  for (const Piece& piece : unit.pieces) {
    const Range own = own_part(piece);
    if (own.count == 0) continue;
    const TensorId grad = graph().params[piece.param].grads[0];
    add_last_sum(piece,
                 level_sum(piece, levels_[0], range(grad, own.begin, own.count), staging, at), unit,
                 steps);
  }
}

void RankSums::add_last_sum(const Piece& piece, Node node, const Unit& unit, UnitSteps& steps) {
  node.out.push_back(summed(piece));
  node.out.back().accumulate = separate_sum(unit.layer);
  steps.sum.push_back(add_node(std::move(node), Pass::reduce, unit.layer));
}

void RankSums::add_node_sums(const Unit& unit, TensorId staging, UnitSteps& steps) {
  const Level &inside = levels_[0], &across = levels_[1];
  const int32_t nodes = across.width();
  const TensorId sums =
      add_tensor(unit_name(unit) + ".node_staging", "comm_staging", Role::node_staging, Dtype::f32,
                 Dims(capacity(unit, 2 * nodes - 1)), unit.layer);
  Node exchange = exchange_node(unit_name(unit) + ".exchange_gradients.across_nodes");
  std::vector<std::pair<Piece, Operand>> own_sums;
  int64_t staged = 0, at = 0, arriving = capacity(unit, nodes);
  int64_t summed_from = arriving;
  for (const Piece& piece : unit.pieces) {
    const Range node_part = part(piece, inside, inside.own), own = own_part(piece);
    if (node_part.count == 0) continue;
    const TensorId grad = graph().params[piece.param].grads[0];
    Node sum =
        level_sum(piece, inside, range(grad, node_part.begin, node_part.count), staging, staged);
    sum.name += ".node";
    sum.out.push_back(range(sums, at, node_part.count));
    steps.across.push_back(add_node(std::move(sum), Pass::reduce, unit.layer));
    own_sums.push_back({piece, range(sums, at + own.begin - node_part.begin, own.count)});
    arriving = exchange_piece(exchange, piece, across, sums, node_part.begin - at, sums, arriving);
    at += node_part.count;
  }
  steps.across.push_back(add_node(std::move(exchange), Pass::reduce, unit.layer));
  for (const auto& [piece, own] : own_sums)
    if (own.count > 0)
      add_last_sum(piece, level_sum(piece, across, own, sums, summed_from), unit, steps);
}

void RankSums::add_norm_partials(const Unit& unit, UnitSteps& steps) {
  for (const Piece& piece : unit.pieces) {
    const Range own = own_part(piece);
    if (own.count == 0) continue;
    const int64_t block = block_elements(total(graph().params[piece.param]));
    Node node = op_node(piece_name(piece) + ".norm_partials", OpKind::norm_partials);
    node.attrs.block = static_cast<int32_t>(block);
    node.in.push_back(summed(piece));
    node.out.push_back(range(partials_, partials_begin_[piece.param] + own.begin / block,
                             ceil_div(own.count, block)));
    steps.finish_step.push_back(add_node(std::move(node), Pass::reduce, unit.layer));
  }
}

}  // namespace spillway
