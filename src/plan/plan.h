// The planner: schedule + hardware profile + budgets + pins → a placement of every tensor, with the
// numbers that say what it costs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/config.h"
#include "config/hardware.h"
#include "parallel/build.h"
#include "parallel/schedule.h"
#include "plan/simulate.h"
#include "program/certificate.h"
#include "program/placement.h"
#include "program/stages.h"

namespace spillway {

// A plan for a profile of CUDA devices has room for the CUDA kernels' workspaces as well.
inline WorkspaceRules workspace_rules(const HardwareProfile& profile, int threads) {
  return {threads, profile.kind == "cuda", profile.gemm_workspace};
}

struct PlanInput {
  const TrainSchedules* train = nullptr;
  const ForwardSchedules* evaluate = nullptr;  // nullptr: no evaluation
  bool checks = false;                         // the set gets the program of TrainSchedules::check
  HardwareProfile profile;
  int ranks_on_node = 1;  // consecutive ones share a node
  Budgets budgets;
  Mode offload = Mode::automatic, recompute = Mode::automatic;
  std::vector<std::pair<std::string, std::string>> pins;  // Config::place
  WorkspaceRules rules;
  int64_t staging_bytes = 0;  // host bytes that checkpoints need at least
  // Whether the set gets the program of a save, and whether a save may copy the states first: it
  // does where the host's budget leaves room for the copy beside everything else.
  bool saves = false, snapshots = false;
  bool bf16 = false;          // which peak counts
  double flops_per_step = 0;  // model FLOPs of one step on one rank, for the MFU
};

// What is lowered together: train first, then what else the run needs.
std::vector<const Schedule*> schedules_of(const PlanInput& input, const ScheduleChoice& choice);

struct TierUse {
  int64_t peak = 0;                         // bytes of the arena
  std::map<std::string, int64_t> by_class;  // place names, "workspace", "transients", …
};

// A placement and the program it gives, packed and synchronised, with predicted times.
struct Plan {
  Placement placement;
  ScheduleChoice schedule;
  Lowered lowered;
  ArenaLayout layout;
  TierUse device, host;
  double step_seconds = 0, mfu = 0;
  ByLane exposed{};  // Simulation::exposed
  double exposed_transfer_seconds() const { return copies_of(exposed); }
};

// What `train plan` prints.
struct PlanReport {
  bool fits = false;
  Plan plan;  // the chosen one; the one of least device memory if nothing fits
  int64_t device_minimum_bytes = 0, host_of_minimum_bytes = 0, all_resident_device_bytes = 0;
  double all_resident_step_seconds = 0;
  // The fastest plan found that keeps nothing on the host and fits the device; 0: none.
  int64_t no_offload_device_bytes = 0;
  double no_offload_step_seconds = 0;
  // No plan of any group size, positions of updates, placement and ring depths is faster than this,
  // in the model; 0 where nothing fits. On the host update pinned layers, others where
  // updates_on_host().
  double bound_seconds = 0;
  std::vector<Certificate> certificates;  // one a group size
};

// Whether plans may update layers on the host that no pin puts there. A CPU backend's updates would
// take processors from what computes, which the simulator does not see.
inline bool updates_on_host(Mode offload, const HardwareProfile& profile) {
  return offload == Mode::automatic && profile.kind != "cpu";
}

// What the simulator runs plans for `input` on.
inline Machine machine_of(const PlanInput& input) {
  return machine_of(input.profile, {input.train->spec().rank, input.ranks_on_node}, input.bf16);
}

// Lowers, packs, synchronises and times one placement.
Plan evaluate_placement(const PlanInput& input, const Placement& placement,
                        const ScheduleChoice& schedule);

// The fastest plan found that fits both budgets. Deterministic. The search is not exhaustive: with
// more memory it may find a plan that is a little slower; pareto_table takes what smaller sizes
// found. Throws bad_input for pins that name nothing in this model (nearest named) or contradict
// each other.
PlanReport make_plan(const PlanInput& input);

// Error(does_not_fit) text for a report that does not fit: tier, bytes short, settings that fit.
std::string shortfall_message(const PlanReport& report, const Budgets& budgets);

// What a plan is for: no other run can use it.
struct PlanSubject {
  std::string numerics, profile, profile_name;  // hashes, and a name for people
  KeyValues numerics_values, profile_values;
};
PlanSubject plan_subject(const Config& config, int ranks, const HardwareProfile& profile);

// What `report` claims of every plan for `input`; nothing where no plan fits.
std::optional<QualityProof> quality_proof(const PlanReport& report, const PlanInput& input);

// Plan files: the placement as JSON, with what it is for and what proves its quality. `report`: the
// text of a JSON value for people's pictures, on a line of its own; "": none.
std::string placement_to_json(const Plan& plan, const PlanSubject& subject,
                              const std::optional<QualityProof>& proof = {},
                              const std::string& report = {});
// Reads such text; `origin` names it in messages. Throws bad_input naming origin and key; a plan
// for other numerics or another profile names both hashes and the first key that differs. Whether
// the proof proves anything is not judged.
struct LoadedPlan {
  Placement placement;
  ScheduleChoice schedule;
  std::optional<QualityProof> proof;
};
LoadedPlan placement_from_json(const std::string& text, const std::string& origin,
                               const TrainSchedules& train, const PlanSubject& subject);

// The decision for every unit that the pins name, as make_plan uses them.
Placement placement_of_pins(const PlanInput& input);
// `choice` with the positions of updates that the pins name, likewise.
ScheduleChoice schedule_of_pins(const PlanInput& input, ScheduleChoice choice);
std::map<int32_t, UpdatePosition> updates_of_pins(const PlanInput& input);  // by layer

}  // namespace spillway
