#include "graph/exchange_cost.h"

#include <algorithm>

namespace spillway {
namespace {

// How many of 0, 1, …, count - 1 are below x / stride, rounded up.
int below(int x, int count, int stride) {
  return std::clamp(x <= 0 ? 0 : (x + stride - 1) / stride, 0, count);
}

}  // namespace

void ExchangeBytes::add(const RankPlace& place, int peer, int count, int stride, double bytes,
                        bool send) {
  const int first = place.rank / place.ranks_on_node * place.ranks_on_node;
  const int in_node = below(first + place.ranks_on_node - peer, count, std::max(1, stride)) -
                      below(first - peer, count, std::max(1, stride));
  (send ? sent_in_node : received_in_node) += bytes * in_node;
  (send ? sent_across : received_across) += bytes * (count - in_node);
}

double ExchangeBytes::of(Traffic kind) const {
  if (kind == Traffic::intra_node) return std::max(sent_in_node, received_in_node);
  return kind == Traffic::network ? std::max(sent_across, received_across) : 0;
}

ExchangeBytes exchange_bytes(const Node& exchange, const Graph& graph, const RankPlace& place) {
  ExchangeBytes result;
  for (const Transfer& t : exchange.transfers) {
    const Operand& o = (t.send ? exchange.in : exchange.out)[t.operand];
    const Tensor& tensor = graph.tensors[o.tensor];
    const int64_t elements = o.count < 0 ? tensor.dims.count() : o.count;
    const int64_t each = (t.same ? elements : elements / t.count) * size_of(tensor.dtype);
    result.add(place, t.peer, t.count, t.stride, static_cast<double>(each), t.send);
  }
  return result;
}

double exchange_seconds(const ExchangeBytes& bytes, const HardwareProfile& profile,
                        const std::vector<SharedResource>& resources) {
  ByTraffic moved{};
  for (const Traffic kind : {Traffic::intra_node, Traffic::network})
    moved[static_cast<size_t>(kind)] = bytes.of(kind);
  return profile.exchange_seconds + seconds_alone(resources, moved);
}

}  // namespace spillway
