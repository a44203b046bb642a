#include "config/resources.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace spillway {
namespace {

double positive(const HardwareProfile& profile, const char* key, double rate) {
  if (!(rate > 0) || rate == std::numeric_limits<double>::infinity())
    bad_input("hardware profile \"{}\": {} is {} bytes a second; expected a rate above zero",
              profile.name, key, rate);
  return rate;
}

// Of each kind's bytes, how often they pass a resource.
struct Weights {
  double h2d = 0, d2h = 0, intra_node = 0, network = 0, cpu_update = 0;
};

}  // namespace

std::vector<SharedResource> shared_resources(const HardwareProfile& p, int ranks_on_node) {
  const int ranks = std::max(1, ranks_on_node);
  const double h2d_alone = positive(p, "h2d_alone_bandwidth", p.h2d_alone_bandwidth);
  const double d2h_alone = positive(p, "d2h_alone_bandwidth", p.d2h_alone_bandwidth);
  const double h2d_all = positive(p, "h2d_bandwidth", p.h2d_bandwidth);
  const double d2h_all = positive(p, "d2h_bandwidth", p.d2h_bandwidth);
  const double both_ways = positive(p, "both_ways_bandwidth", p.both_ways_bandwidth);
  const double uplink = positive(p, "uplink_bandwidth", p.uplink_bandwidth) /
                        std::min(ranks, std::max(1, p.devices_per_uplink));
  const double memory = positive(p, "host_bandwidth", p.host_bandwidth) / ranks;
  const double update = positive(p, "cpu_update_bandwidth", p.cpu_update_bandwidth) / ranks;
  const double intra_node = positive(p, "intra_node_bandwidth", p.intra_node_bandwidth);
  const double network = positive(p, "network_bandwidth", p.network_bandwidth);

  // Messages that pass the device's link; those that pass its switch's uplink and host memory too.
  const auto passes = [](MessagePath path, MessagePath least) { return path >= least ? 1.0 : 0.0; };
  const double node_link = passes(p.intra_node_path, MessagePath::link);
  const double node_host = passes(p.intra_node_path, MessagePath::host);
  const double net_link = passes(p.network_path, MessagePath::link);
  const double net_host = passes(p.network_path, MessagePath::host);
  const bool messages_on_link = node_link + net_link > 0;
  // A CPU backend's device memory is the host's: a copy reads and writes it, a message is copied
  // twice, through memory that both processes see or by the network's stack.
  const bool one_memory = p.kind == "cpu";
  const bool all = ranks >= p.devices_per_node;

  std::vector<SharedResource> result;
  const auto add = [&](const char* name, double rate, const Weights& w) {
    result.push_back({name, rate, {w.h2d, w.d2h, w.intra_node, w.network, w.cpu_update}});
  };
  add("host to device copies", all ? std::min(h2d_alone, h2d_all) : h2d_alone, {.h2d = 1});
  add("device to host copies", all ? std::min(d2h_alone, d2h_all) : d2h_alone, {.d2h = 1});
  if (messages_on_link) {
    add("link to the device", h2d_alone, {.h2d = 1, .intra_node = node_link, .network = net_link});
    add("link from the device", d2h_alone,
        {.d2h = 1, .intra_node = node_link, .network = net_link});
  }
  add("link, both ways", both_ways,
      {.h2d = 1, .d2h = 1, .intra_node = 2 * node_link, .network = 2 * net_link});
  add("uplink to the switch's devices", uplink,
      {.h2d = 1, .intra_node = node_host, .network = net_host});
  add("uplink from the switch's devices", uplink,
      {.d2h = 1, .intra_node = node_host, .network = net_host});
  add("host memory", memory,
      {.h2d = one_memory ? 2.0 : 1.0,
       .d2h = one_memory ? 2.0 : 1.0,
       .intra_node = one_memory ? 4.0 : 2 * node_host,
       .network = one_memory ? 4.0 : 2 * net_host,
       .cpu_update = 1});
  add("CPU update", update, {.cpu_update = 1});
  add("links inside the node", intra_node, {.intra_node = 1});
  add("network card", network, {.network = 1});
  return result;
}

double rate_alone(const std::vector<SharedResource>& resources, Traffic kind) {
  double rate = std::numeric_limits<double>::infinity();
  for (const SharedResource& r : resources)
    if (r.of(kind) > 0) rate = std::min(rate, r.bytes_per_second / r.of(kind));
  return rate;
}

double seconds_alone(const std::vector<SharedResource>& resources, const ByTraffic& bytes) {
  double seconds = 0;
  for (const SharedResource& r : resources) {
    double load = 0;
    for (size_t k = 0; k < kTraffics; ++k) load += r.weight[k] * bytes[k];
    seconds = std::max(seconds, load / r.bytes_per_second);
  }
  return seconds;
}

// All flows grow together until a resource is full; those that use it stay, the others grow on.
ByTraffic max_min_rates(const std::vector<SharedResource>& resources,
                        const std::array<uint8_t, kTraffics>& flows) {
  ByTraffic rates{};
  std::array<bool, kTraffics> grows{};
  for (size_t k = 0; k < kTraffics; ++k) grows[k] = flows[k] > 0;
  while (std::find(grows.begin(), grows.end(), true) != grows.end()) {
    double level = std::numeric_limits<double>::infinity();
    const SharedResource* full = nullptr;
    for (const SharedResource& r : resources) {
      double left = r.bytes_per_second, growing = 0;
      for (size_t k = 0; k < kTraffics; ++k) {
        const double weight = r.weight[k] * flows[k];
        (grows[k] ? growing : left) += grows[k] ? weight : -weight * rates[k];
      }
      if (growing > 0 && left / growing < level) {
        level = left / growing;
        full = &r;
      }
    }
    if (full == nullptr) internal_error("a kind of traffic that nothing limits");
    for (size_t k = 0; k < kTraffics; ++k)
      if (grows[k] && full->weight[k] > 0) {
        grows[k] = false;
        rates[k] = level;
      }
  }
  return rates;
}

}  // namespace spillway
