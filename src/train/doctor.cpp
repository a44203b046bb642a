#include "train/doctor.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/backend.h"
#include "runtime/cpu/mpi_communicator.h"
#include "runtime/local_communicator.h"
#include "train/doctor_checks.h"
#include "train/together.h"
#include "train/workload.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kHealth[] = {"ok", "warning", "error"};

// Rank 0 plans; the others hear what came out.
Needs needs_of(const DoctorOptions& options, Communicator& communicator) {
  if (options.config.empty()) return {};
  std::string text;
  on_rank_0(communicator, [&] { text = to_json_text(load_config(options.config, options.set)); });
  text = communicator.broadcast_text(text, 0);
  const Config config = parse_config(text, options.config, {});
  Needs needs;
  needs.output = config.output;
  needs.threads = static_cast<int>(config.train.threads);
  const bool usable = cuda_backend() != nullptr && cuda_backend()->unavailable().empty();
  needs.cuda = config.hardware.backend == Backend::cuda ||
               (config.hardware.backend == Backend::automatic && usable);
  std::string told;
  if (communicator.rank() == 0) {
    Json j;
    try {
      const int threads = needs.threads > 0
                              ? needs.threads
                              : std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)) /
                                                communicator.ranks_on_node());
      HardwareConfig hardware = config.hardware;
      if (!needs.cuda) hardware.backend = Backend::cpu;
      const HardwareProfile profile = needs.cuda && usable && hardware.profile == "auto"
                                          ? cuda_backend()->derive_profile(0)
                                          : load_profile(hardware);
      const Workload workload(
          config, {0, communicator.size(), communicator.ranks_on_node(), threads}, profile);
      const PlanReport report = make_plan(workload.input);
      j["device"] = report.plan.device.peak;
      j["host"] = report.plan.host.peak;
      const Schedule& train = workload.train.get(report.plan.schedule);
      j["checkpoint"] = saved_bytes(train, report.plan.lowered.homes) * communicator.size();
      j["problem"] = report.fits ? "" : shortfall_message(report, workload.input.budgets);
    } catch (const Error& e) {
      j["problem"] = e.what();
    }
    told = j.dump();
  }
  const Json j = Json::parse(communicator.broadcast_text(told, 0));
  needs.problem = j.at("problem");
  needs.known = j.contains("device");
  if (!needs.known) return needs;
  needs.device_bytes = j.at("device");
  needs.host_bytes = j.at("host");
  needs.checkpoint_bytes = j.at("checkpoint");
  return needs;
}

Check plan_finding(const Needs& needs) {
  if (needs.problem.empty())
    return {"plan",
            Health::ok,
            fmt::format("fits: a rank needs {} of device and {} of host memory",
                        format_bytes(needs.device_bytes), format_bytes(needs.host_bytes)),
            "",
            {}};
  return {"plan", Health::error, needs.problem, "train plan --config shows what would fit", {}};
}

// Findings that say the same become one, with the ranks that say so.
std::vector<Check> together(Communicator& communicator, const std::vector<Check>& own) {
  Json mine = Json::array();
  for (const Check& f : own) mine.push_back({f.check, static_cast<int>(f.health), f.found, f.mend});
  const std::string lines = communicator.gather_text(mine.dump());
  std::vector<Check> all;
  if (communicator.rank() != 0) return all;
  std::istringstream text(lines);
  int rank = 0;
  for (std::string line; std::getline(text, line); ++rank)
    for (const Json& j : Json::parse(line)) {
      const Check f{j[0], static_cast<Health>(j[1].get<int>()), j[2], j[3], {}};
      auto same = std::find_if(all.begin(), all.end(), [&](const Check& other) {
        return f.check == other.check && f.health == other.health && f.found == other.found;
      });
      if (same == all.end()) {
        // Beside the other findings of its check.
        auto last = std::find_if(all.rbegin(), all.rend(),
                                 [&](const Check& other) { return other.check == f.check; });
        same = all.insert(last.base() == all.begin() ? all.end() : last.base(), f);
      }
      same->ranks.push_back(rank);
    }
  return all;
}

std::string ranks_text(const Check& f, int ranks) {
  if (static_cast<int>(f.ranks.size()) == ranks) return ranks == 1 ? "" : "all";
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, f.ranks.size()); ++i)
    text += (i ? "," : "") + std::to_string(f.ranks[i]);
  return f.ranks.size() > kShown ? text + ",…" : text;
}

void print_table(const std::vector<Check>& all, int ranks) {
  fmt::print("{:<8} {:<16} {:<10} {}\n", "", "check", ranks > 1 ? "ranks" : "", "found");
  for (const Check& f : all) {
    fmt::print("{:<8} {:<16} {:<10} {}\n", kHealth[static_cast<int>(f.health)], f.check,
               ranks_text(f, ranks), f.found);
    if (!f.mend.empty()) fmt::print("{:<8} {:<16} {:<10} → {}\n", "", "", "", f.mend);
  }
}

void print_json(const std::vector<Check>& all, bool ok) {
  Json checks = Json::array();
  for (const Check& f : all)
    checks.push_back({{"check", f.check},
                      {"status", kHealth[static_cast<int>(f.health)]},
                      {"ranks", f.ranks},
                      {"found", f.found},
                      {"mend", f.mend}});
  fmt::print("{}\n", Json{{"ok", ok}, {"checks", checks}}.dump(2));
}

}  // namespace

ExitCode doctor_command(const DoctorOptions& options) {
  const Launcher launcher = detect_launcher();
  std::unique_ptr<Communicator> communicator;
  if (launcher.problem.empty())
    communicator = make_communicator();
  else
    communicator = std::make_unique<LocalCommunicator>();
  Needs needs;
  try {
    needs = needs_of(options, *communicator);
  } catch (const SharedError& e) {
    if (communicator->rank() != 0) return e.code();  // rank 0 tells
    throw;
  }
  std::vector<Check> own{check_launch(launcher, *communicator)};
  const auto add = [&](const std::vector<Check>& more) {
    own.insert(own.end(), more.begin(), more.end());
  };
  if (communicator->size() > 1) {
    add({check_same_program(*communicator)});
    add({check_overlap(*communicator)});
  }
  if (!options.config.empty()) add({plan_finding(needs)});
  add(check_host(needs, *communicator));
  add(check_cuda(needs));
  add(check_output(needs, *communicator));
  add(check_network(*communicator));

  int worst = 0;
  for (const Check& f : own) worst = std::max(worst, static_cast<int>(f.health));
  worst = static_cast<int>(communicator->max(worst));
  const bool ok = worst < static_cast<int>(Health::error);
  const std::vector<Check> all = together(*communicator, own);
  if (communicator->rank() == 0) {
    if (options.json)
      print_json(all, ok);
    else
      print_table(all, communicator->size());
    std::fflush(stdout);
  }
  communicator->barrier();
  return ok ? ExitCode::done : ExitCode::bad_input;
}

}  // namespace spillway
