#include <nlohmann/json.hpp>

#include "train/plan_output.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

Json or_null(double value) { return value > 0 ? Json(value) : Json(nullptr); }

Json counts_json(const std::map<std::string, NameCounts>& counts) {
  Json j = Json::object();
  for (const auto& [name, n] : counts)
    j[name] = {{"resident", n.resident},
               {"streamed", n.streamed},
               {"recomputed", n.recomputed},
               {"sharded", n.sharded}};
  return j;
}

constexpr const char* kResources[] = {"device_memory", "host_memory", "link", "peers", "network"};

Json marginals_json(const std::vector<Marginal>& marginals) {
  Json j = Json::array();
  for (const Marginal& m : marginals) {
    const bool memory =
        m.resource == Resource::device_memory || m.resource == Resource::host_memory;
    j.push_back({{"resource", kResources[static_cast<int>(m.resource)]},
                 {memory ? "bytes" : "bytes_per_second", m.amount},
                 {"dual_seconds", m.dual_seconds},
                 {"replanned_seconds", m.replanned_seconds},
                 {"step_seconds", m.step_seconds},
                 {"bound_seconds", or_null(m.bound_seconds)}});
  }
  return j;
}

Json point_json(const PlanPoint& p) {
  return {
      {"device_bytes", p.device_bytes}, {"host_bytes", p.host_bytes},
      {"step_seconds", p.step_seconds}, {"exposed_transfer_seconds", p.exposed_transfer_seconds},
      {"streamed", p.streamed},         {"recomputed", p.recomputed}};
}

Json pareto_json(const ParetoTable& table) {
  Json rows = Json::array();
  for (const ParetoRow& r : table.rows) {
    Json row = {{"device_budget_bytes", r.device_budget}, {"fits", r.fits}};
    row["bound_seconds"] = or_null(r.bound_seconds);
    if (r.fits) {
      row.update(point_json(r.plan));
      row["gap"] = r.bound_seconds > 0 ? Json(r.plan.step_seconds / r.bound_seconds - 1) : nullptr;
    }
    rows.push_back(std::move(row));
  }
  return {{"rows", rows},
          {"all_resident", point_json(table.all_resident)},
          {"full_recompute", point_json(table.full_recompute)}};
}

Json changes_json(const std::vector<Change>& changes) {
  Json list = Json::array();
  for (const Change& c : changes) {
    Json set = Json::object();
    for (const auto& [key, value] : c.keys) set[key] = value;
    list.push_back({{"set", set},
                    {"changes_numerics", c.numerics},
                    {"device_bytes", c.device_bytes},
                    {"host_bytes", c.host_bytes},
                    {"step_seconds", c.step_seconds}});
  }
  return list;
}

}  // namespace

Json plan_json(const PlanAnswer& answer, const Workload& w) {
  const PlanReport& r = answer.report;
  const bool possible = r.no_offload_device_bytes > 0;
  Json j;
  j["fits"] = r.fits;
  j["profile"] = w.input.profile.name;
  j["ranks"] = w.topology.ranks;
  j["tokens_per_step"] = w.tokens_per_step;
  j["device_peak_bytes"] = r.plan.device.peak;
  j["host_peak_bytes"] = r.plan.host.peak;
  j["device_minimum_bytes"] = r.device_minimum_bytes;
  j["host_of_minimum_bytes"] = r.host_of_minimum_bytes;
  j["all_resident_device_bytes"] = r.all_resident_device_bytes;
  j["step_seconds"] = r.plan.step_seconds;
  j["all_resident_step_seconds"] = r.all_resident_step_seconds;
  j["exposed_transfer_seconds"] = r.plan.exposed_transfer_seconds();
  const auto exposed = [&](Lane lane) { return r.plan.exposed[static_cast<size_t>(lane)]; };
  j["exposed_seconds"] = {{"h2d", exposed(Lane::h2d)},
                          {"d2h", exposed(Lane::d2h)},
                          {"communication", exposed(Lane::comm)},
                          {"cpu_update", exposed(Lane::cpu)}};
  j["no_offload_device_bytes"] = possible ? Json(r.no_offload_device_bytes) : Json(nullptr);
  j["no_offload_step_seconds"] = possible ? Json(r.no_offload_step_seconds) : Json(nullptr);
  j["bound_seconds"] = or_null(r.bound_seconds);
  j["gap"] = r.bound_seconds > 0 ? Json(r.plan.step_seconds / r.bound_seconds - 1) : Json(nullptr);
  j["mfu"] = r.plan.mfu;
  j["group"] = r.plan.schedule.group;
  j["rotated_layers"] = rotated_layers(r.plan.schedule);
  j["host_updated_layers"] = layers_updated_on_host(r.plan.schedule);
  j["layers_of_zero_stage"] = layers_of_stage(r.plan, w);
  j["device_budget_bytes"] = w.input.budgets.device;
  j["host_budget_bytes"] = w.input.budgets.host;
  j["device_bytes_by_class"] = r.plan.device.by_class;
  j["host_bytes_by_class"] = r.plan.host.by_class;
  j["layers_by_name"] = counts_json(counts_by_name(r.plan, w.train.get(r.plan.schedule)));
  j["process_reserve_bytes"] = kProcessReserveBytes;
  j["machine_memory_bytes"] = machine_memory_bytes();
  if (!r.fits) j["changes_that_fit"] = changes_json(answer.changes);
  if (answer.marginals) j["marginals"] = marginals_json(*answer.marginals);
  if (answer.pareto) j["pareto"] = pareto_json(*answer.pareto);
  return j;
}

}  // namespace spillway
