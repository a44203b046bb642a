#include "parallel/exchange.h"

namespace spillway {
namespace {

void transfer_each(Node& node, bool send, TensorId tensor, const std::vector<Message>& messages) {
  std::vector<Operand>& operands = send ? node.in : node.out;
  for (const Message& m : messages) {
    if (m.range.count == 0) continue;
    if (!node.transfers.empty() && node.transfers.back().send == send &&
        !node.transfers.back().same && operands.back().tensor == tensor) {
      Transfer& run = node.transfers.back();
      Operand& held = operands.back();
      const int32_t gap = m.peer - run.peer - (run.count - 1) * run.stride;
      if (held.count == run.count * m.range.count && held.begin + held.count == m.range.begin &&
          gap > 0 && (run.count == 1 || gap == run.stride)) {
        run.stride = gap;
        ++run.count;
        held.count += m.range.count;
        continue;
      }
    }
    operands.push_back({tensor, m.range.begin, m.range.count});
    node.transfers.push_back({m.peer, send, static_cast<int32_t>(operands.size()) - 1});
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

void send_each(Node& node, TensorId tensor, const std::vector<Message>& messages) {
  transfer_each(node, true, tensor, messages);
}

void receive_each(Node& node, TensorId tensor, const std::vector<Message>& messages) {
  transfer_each(node, false, tensor, messages);
}

void send_all(Node& node, const Operand& operand, const Level& level) {
  if (operand.count == 0 || level.width() == 1) return;
  node.in.push_back(operand);
  const auto index = static_cast<int32_t>(node.in.size()) - 1;
  const int32_t stride = level.ranks[1] - level.ranks[0];
  for (const auto& [begin, end] : {std::pair(0, level.own), {level.own + 1, level.width()}})
    if (begin < end)
      node.transfers.push_back({level.ranks[begin], true, index, end - begin, stride, true});
}

void gather_piece(Node& node, const Piece& piece, int64_t total, int ranks, const Level& level,
                  TensorId whole) {
  const auto part = [&](int32_t member) {
    return part_of_places(piece, total, ranks, level.place_of(member), level.places);
  };
  const Range own = part(level.own);
  send_all(node, {whole, own.begin, own.count}, level);
  std::vector<Message> messages;
  for (int32_t k = 0; k < level.width(); ++k)
    if (k != level.own) messages.push_back({level.ranks[k], part(k)});
  receive_each(node, whole, messages);
}

}  // namespace spillway
