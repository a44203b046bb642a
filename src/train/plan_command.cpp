#include "train/plan_command.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "runtime/launch.h"
#include "runtime/local_communicator.h"
#include "train/quality.h"
#include "train/workload.h"

namespace spillway {
namespace {

Topology topology_of(const Config& config, int ranks) {
  Topology t;
  t.ranks = ranks;
  t.ranks_on_node =
      config.hardware.devices_per_node > 0
          ? static_cast<int>(std::min<int64_t>(config.hardware.devices_per_node, ranks))
          : ranks;
  LocalCommunicator alone;
  const int cores = claim_cores(static_cast<int>(config.train.threads), alone).threads;
  t.threads = config.train.threads > 0 ? static_cast<int>(config.train.threads)
                                       : std::max(1, cores / t.ranks_on_node);
  return t;
}

int rotated_layers(const ScheduleChoice& schedule) {
  return static_cast<int>(
      std::count(schedule.update.begin(), schedule.update.end(), UpdatePosition::rotated));
}

// Layers of each ZeRO stage.
std::array<int, 4> layers_of_stage(const Plan& plan, const Workload& w) {
  std::array<int, 4> layers{};
  for (int32_t layer = 0; layer < w.config.model.layers + 2; ++layer)
    ++layers[static_cast<size_t>(plan.schedule.zero_of(layer, w.spec))];
  return layers;
}

nlohmann::ordered_json report_json(const PlanReport& r, const Workload& w) {
  nlohmann::ordered_json j;
  j["fits"] = r.fits;
  j["device_peak_bytes"] = r.plan.device.peak;
  j["host_peak_bytes"] = r.plan.host.peak;
  j["device_minimum_bytes"] = r.device_minimum_bytes;
  j["all_resident_device_bytes"] = r.all_resident_device_bytes;
  j["step_seconds"] = r.plan.step_seconds;
  j["all_resident_step_seconds"] = r.all_resident_step_seconds;
  j["exposed_transfer_seconds"] = r.plan.exposed_transfer_seconds;
  const bool possible = r.no_offload_device_bytes > 0;
  j["no_offload_device_bytes"] =
      possible ? nlohmann::ordered_json(r.no_offload_device_bytes) : nullptr;
  j["no_offload_step_seconds"] =
      possible ? nlohmann::ordered_json(r.no_offload_step_seconds) : nullptr;
  j["bound_seconds"] = r.bound_seconds > 0 ? nlohmann::ordered_json(r.bound_seconds) : nullptr;
  j["gap"] = r.bound_seconds > 0 ? nlohmann::ordered_json(r.plan.step_seconds / r.bound_seconds - 1)
                                 : nullptr;
  j["mfu"] = r.plan.mfu;
  j["group"] = r.plan.schedule.group;
  j["rotated_layers"] = rotated_layers(r.plan.schedule);
  j["layers_of_zero_stage"] = layers_of_stage(r.plan, w);
  j["device_budget_bytes"] = w.input.budgets.device;
  j["host_budget_bytes"] = w.input.budgets.host;
  j["device_bytes_by_class"] = r.plan.device.by_class;
  j["host_bytes_by_class"] = r.plan.host.by_class;
  j["process_reserve_bytes"] = kProcessReserveBytes;
  j["machine_memory_bytes"] = machine_memory_bytes();
  return j;
}

void print_classes(const TierUse& device, const TierUse& host) {
  std::set<std::string> names;
  for (const auto& [name, bytes] : device.by_class) names.insert(name);
  for (const auto& [name, bytes] : host.by_class) names.insert(name);
  const auto cell = [](const TierUse& use, const std::string& name) {
    const auto it = use.by_class.find(name);
    return it == use.by_class.end() ? std::string("-") : format_bytes(it->second);
  };
  fmt::print("  {:<26} {:>12} {:>12}\n", "class", "device", "host");
  for (const std::string& name : names)
    fmt::print("  {:<26} {:>12} {:>12}\n", name, cell(device, name), cell(host, name));
  fmt::print("  {:<26} {:>12} {:>12}\n", "total", format_bytes(device.peak),
             format_bytes(host.peak));
}

void print_decisions(const Placement& placement) {
  std::map<std::string, int[3]> counts;
  for (const auto& [key, where] : placement.where) ++counts[key.first][static_cast<int>(where)];
  fmt::print("  {:<26} {:>12} {:>12} {:>12}\n", "tensors by layer", "resident", "streamed",
             "recomputed");
  for (const auto& [name, n] : counts)
    fmt::print("  {:<26} {:>12} {:>12} {:>12}\n", name, n[0], n[1], n[2]);
}

void print_schedule(const Plan& p, const Workload& w) {
  const int rotated = rotated_layers(p.schedule);
  fmt::print("  order                      {} of {} micro-batches at a time in each layer; {}\n",
             p.schedule.group, w.spec.micro_batches,
             rotated == 0 ? std::string("updates at the end of the step")
                          : fmt::format("updates of {} layers in the next forward pass", rotated));
  if (!w.spec.zero_is_free) return;
  std::string text;
  for (size_t stage = 0; const int layers : layers_of_stage(p, w)) {
    if (layers > 0)
      text += fmt::format("{}ZeRO-{} in {} layers", text.empty() ? "" : ", ", stage, layers);
    ++stage;
  }
  fmt::print("  shared by ranks            {}\n", text);
}

void print_report(const PlanReport& r, const Workload& w) {
  const Plan& p = r.plan;
  fmt::print("{} on {}: {} rank{}, {} tokens a step\n", r.fits ? "fits" : "does not fit",
             w.input.profile.name, w.topology.ranks, w.topology.ranks == 1 ? "" : "s",
             w.tokens_per_step);
  fmt::print("  device budget {}, host budget {}\n", format_bytes(w.input.budgets.device),
             format_bytes(w.input.budgets.host));
  print_classes(p.device, p.host);
  print_decisions(p.placement);
  print_schedule(p, w);
  fmt::print(
      "  besides the arenas         {:>12} of host memory a rank at most (process, libraries)\n",
      format_bytes(kProcessReserveBytes));
  fmt::print("  minimum device memory      {:>12}\n", format_bytes(r.device_minimum_bytes));
  fmt::print("  all resident               {:>12}, {:.2f} ms a step\n",
             format_bytes(r.all_resident_device_bytes), 1e3 * r.all_resident_step_seconds);
  if (r.no_offload_device_bytes > 0)
    fmt::print("  without offload            {:>12}, {:.2f} ms a step\n",
               format_bytes(r.no_offload_device_bytes), 1e3 * r.no_offload_step_seconds);
  else
    fmt::print("  without offload            no plan found that fits\n");
  fmt::print("  predicted step time        {:.2f} ms, exposed transfer {:.2f} ms, MFU {:.1f} %\n",
             1e3 * p.step_seconds, 1e3 * p.exposed_transfer_seconds, 100 * p.mfu);
  if (r.bound_seconds > 0)
    fmt::print("  no plan can be faster than {:.2f} ms: at most {:.2f} % are left\n",
               1e3 * r.bound_seconds, 100 * (p.step_seconds / r.bound_seconds - 1));
}

LoadedPlan load_plan(const std::string& path, const Workload& workload) {
  constexpr int64_t kLargestPlan = int64_t{64} << 20;
  return placement_from_json(read_text(posix_file_system(), path, kLargestPlan), path,
                             workload.train, workload.subject);
}

ExitCode verify_plan(const Workload& workload, const PlanOptions& options) {
  const std::string& file = options.verify_file;
  const LoadedPlan loaded = load_plan(file, workload);
  if (!loaded.proof)
    bad_input("{}: the plan has no certificate; train plan --out writes plans that have one", file);
  const QualityProof& proof = *loaded.proof;
  const Plan plan = evaluate_placement(workload.input, loaded.placement, loaded.schedule);
  const double bound = check_proof(workload.input, plan, proof, file);
  if (options.json) {
    nlohmann::ordered_json j;
    j["step_seconds"] = plan.step_seconds;
    j["bound_seconds"] = bound;
    j["gap"] = plan.step_seconds / bound - 1;
    j["device_budget_bytes"] = proof.budgets.device;
    j["host_budget_bytes"] = proof.budgets.host;
    fmt::print("{}\n", j.dump(2));
    return ExitCode::done;
  }
  fmt::print("{}: the certificate holds, for {} of device and {} of host memory\n", file,
             format_bytes(proof.budgets.device), format_bytes(proof.budgets.host));
  fmt::print("  predicted step time        {:.2f} ms\n", 1e3 * plan.step_seconds);
  fmt::print("  no plan can be faster than {:.2f} ms: at most {:.2f} % are left\n", 1e3 * bound,
             100 * (plan.step_seconds / bound - 1));
  return ExitCode::done;
}

}  // namespace

ExitCode plan_command(const Config& config, const PlanOptions& options) {
  const Workload workload(config, topology_of(config, options.ranks));
  if (!options.verify_file.empty()) return verify_plan(workload, options);
  PlanReport report = make_plan(workload.input);
  if (!options.plan_file.empty()) {
    const LoadedPlan loaded = load_plan(options.plan_file, workload);
    report.plan = evaluate_placement(workload.input, loaded.placement, loaded.schedule);
    if (loaded.proof) check_proof(workload.input, report.plan, *loaded.proof, options.plan_file);
    report.fits = report.plan.device.peak <= workload.input.budgets.device &&
                  report.plan.host.peak <= workload.input.budgets.host;
  }
  if (options.json)
    fmt::print("{}\n", report_json(report, workload).dump(2));
  else
    print_report(report, workload);
  if (!report.fits) {
    std::fflush(stdout);
    throw Error(ExitCode::does_not_fit, shortfall_message(report, workload.input.budgets));
  }
  if (!options.out.empty()) {
    std::ofstream out(options.out, std::ios::trunc);
    // What a plan that was read claims may not hold for these budgets.
    const bool made = options.plan_file.empty();
    out << placement_to_json(report.plan, workload.subject,
                             made ? quality_proof(report, workload.input) : std::nullopt)
        << '\n';
    out.close();
    if (!out) bad_input("--out: {} cannot be written", options.out);
  }
  return ExitCode::done;
}

}  // namespace spillway
