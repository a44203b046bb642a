#include "parallel/exchange.h"

namespace spillway {
namespace {

// Makes the message to or from `peer` a part of the run, if it continues it.
bool joins_last(Transfer& run, Operand& held, int32_t peer, const Range& range) {
  const int32_t gap = peer - run.peer - (run.count - 1) * run.stride;
  if (held.count != run.count * range.count || held.begin + held.count != range.begin || gap <= 0 ||
      (run.count > 1 && gap != run.stride))
    return false;
  run.stride = gap;
  ++run.count;
  held.count += range.count;
  return true;
}

void transfer_each(Node& node, bool send, TensorId tensor, const std::vector<Messages>& messages) {
  std::vector<Operand>& operands = send ? node.in : node.out;
  for (const Messages& m : messages) {
    if (m.range.count == 0) continue;
    for (int32_t k = 0; k < m.count; ++k) {
      const int32_t peer = m.peer + k * m.stride;
      const Range range{m.range.begin + k * m.range.count, m.range.count};
      if (!node.transfers.empty() && node.transfers.back().send == send &&
          !node.transfers.back().same && operands.back().tensor == tensor &&
          joins_last(node.transfers.back(), operands.back(), peer, range)) {
        if (node.transfers.back().stride != m.stride) continue;
        // So do all that follow.
        const int32_t rest = m.count - 1 - k;
        node.transfers.back().count += rest;
        operands.back().count += rest * range.count;
        break;
      }
      operands.push_back({tensor, range.begin, range.count});
      node.transfers.push_back({peer, send, static_cast<int32_t>(operands.size()) - 1});
    }
  }
}

}  // namespace

std::vector<Level> exchange_levels(const ParallelSpec& spec) {
  if (!spec.two_levels()) {
    Level all;
    for (int32_t rank = 0; rank < spec.ranks; ++rank) all.ranks.push_back(rank);
    all.own = spec.rank;
    all.inner = spec.tree;
    return {all};
  }
  const int32_t nodes = spec.ranks / spec.tree;
  const int32_t node = spec.rank / spec.tree, local = spec.rank % spec.tree;
  Level inside, across;
  for (int32_t k = 0; k < spec.tree; ++k) inside.ranks.push_back(node * spec.tree + k);
  inside.own = local;
  inside.inner = spec.tree;
  inside.places = nodes;
  for (int32_t k = 0; k < nodes; ++k) across.ranks.push_back(k * spec.tree + local);
  across.own = node;
  across.first = local * nodes;
  return {inside, across};
}

int32_t even_members(const Piece& piece, int64_t total, int ranks, const Level& level) {
  const int64_t each = level.places * piece.count;
  const int64_t begin = ranks * piece.begin + level.first * piece.count;
  if (each == 0 || begin >= total) return 0;
  return static_cast<int32_t>(std::min<int64_t>((total - begin) / each, level.width()));
}

void send_each(Node& node, TensorId tensor, const std::vector<Messages>& messages) {
  transfer_each(node, true, tensor, messages);
}

void receive_each(Node& node, TensorId tensor, const std::vector<Messages>& messages) {
  transfer_each(node, false, tensor, messages);
}

void send_all(Node& node, const Operand& operand, const Level& level) {
  if (operand.count == 0 || level.width() == 1) return;
  node.in.push_back(operand);
  const auto index = static_cast<int32_t>(node.in.size()) - 1;
  for (const auto& [begin, end] : {std::pair(0, level.own), {level.own + 1, level.width()}})
    if (begin < end)
      node.transfers.push_back(
          {level.ranks[begin], true, index, end - begin, level.stride(), true});
}

void gather_piece(Node& node, const Piece& piece, int64_t total, int ranks, const Level& level,
                  TensorId whole) {
  const auto part = [&](int32_t member) {
    return part_of_places(piece, total, ranks, level.place_of(member), level.places);
  };
  const Range own = part(level.own);
  send_all(node, {whole, own.begin, own.count}, level);
  receive_each(node, whole, one_each(level, even_members(piece, total, ranks, level), part));
}

}  // namespace spillway
