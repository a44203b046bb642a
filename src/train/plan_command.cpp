#include "train/plan_command.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "runtime/launch.h"
#include "runtime/local_communicator.h"
#include "train/plan_output.h"
#include "train/plan_timeline.h"
#include "train/quality.h"
#include "train/workload.h"

namespace spillway {
namespace {

constexpr int kParetoSizes = 12;

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

void write_file(const char* option, const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::trunc);
  out << text << '\n';
  out.close();
  if (!out) bad_input("{}: {} cannot be written", option, path);
}

}  // namespace

ExitCode plan_command(const Config& config, const PlanOptions& options) {
  const Workload workload(config, topology_of(config, options.ranks));
  if (!options.verify_file.empty()) return verify_plan(workload, options);
  PlanAnswer answer;
  PlanReport& report = answer.report;
  report = make_plan(workload.input);
  if (!options.plan_file.empty()) {
    const LoadedPlan loaded = load_plan(options.plan_file, workload);
    report.plan = evaluate_placement(workload.input, loaded.placement, loaded.schedule);
    if (loaded.proof) check_proof(workload.input, report.plan, *loaded.proof, options.plan_file);
    report.fits = report.plan.device.peak <= workload.input.budgets.device &&
                  report.plan.host.peak <= workload.input.budgets.host;
  }
  constexpr size_t kChanges = 3;
  if (!report.fits && options.plan_file.empty())
    answer.changes = changes_that_fit(workload, report, kChanges);
  const bool several_nodes = workload.topology.ranks_on_node < workload.topology.ranks;
  if (options.marginals && report.fits)
    answer.marginals = marginal_values(workload.input, report, several_nodes);
  if (options.pareto) answer.pareto = pareto_table(workload.input, report, kParetoSizes);
  if (options.json)
    fmt::print("{}\n", plan_json(answer, workload).dump(2));
  else
    fmt::print("{}", plan_text(answer, workload));
  if (!report.fits) {
    std::fflush(stdout);
    throw Error(ExitCode::does_not_fit, shortfall_message(report, workload.input.budgets));
  }
  constexpr size_t kSamples = 2000, kPictureSamples = 400;
  const PlanInput& input = workload.input;
  if (!options.out.empty()) {
    // What a plan that was read claims may not hold for these budgets.
    const bool made = options.plan_file.empty();
    nlohmann::ordered_json pictures = plan_json(answer, workload);
    pictures["timeline"] = timeline_json(plan_timeline(input, report.plan, kPictureSamples));
    write_file(
        "--out", options.out,
        placement_to_json(report.plan, workload.subject,
                          made ? quality_proof(report, input) : std::nullopt, pictures.dump()));
  }
  if (!options.timeline.empty()) {
    const PlanTimeline timeline = plan_timeline(input, report.plan, kSamples);
    write_file("--timeline", options.timeline, chrome_trace(timeline.lanes, {}, timeline.memory));
  }
  return ExitCode::done;
}

}  // namespace spillway
