// Internal to the planner: the candidates of its search.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace spillway {

struct Candidate {
  Placement placement;  // of every unit
  ScheduleChoice schedule;
  friend bool operator==(const Candidate& a, const Candidate& b) {
    return a.schedule == b.schedule && a.placement.where == b.placement.where &&
           a.placement.slots == b.placement.slots;
  }
};

struct Peaks {
  int64_t device = 0, host = 0;  // bytes of the arenas
};

enum class UnitKind : uint8_t { activation, parameters, gradients, state };

// Units of one name that are decided alike in the search for the minimum: the embedding's, the
// blocks' or the head's.
struct Group {
  std::string name;
  UnitKind kind = UnitKind::activation;
  std::vector<PlaceUnit> units;  // without pinned ones, by ascending layer
  int64_t bytes = 0;
  std::vector<Where> choices;  // `device` first
};

struct SearchSpace {
  const PlanInput* input = nullptr;
  ScheduleChoice choice;      // of every candidate, but for when sums are issued
  Placement base;             // everything resident but for the pins
  std::vector<Group> groups;  // with at least two choices, by name and layer
  int64_t nodes = 0;          // over all stages: measures what one evaluation takes
  bool several_ranks = false;
};

// Throws bad_input as placement_of_pins does.
SearchSpace search_space(const PlanInput& input, const ScheduleChoice& choice = {});

// evaluate_placement in two parts: all but waits and times, and those.
Plan lay_out(const PlanInput& input, const Placement& placement, const ScheduleChoice& schedule);
void synchronise_and_time(const PlanInput& input, Plan& plan);

// The bytes that evaluate_placement would find, without making a program: several times as fast.
struct MemoryUse {
  TierUse device, host;
};
MemoryUse memory_of(const PlanInput& input, const Placement& placement,
                    const ScheduleChoice& schedule);
Peaks peaks_of(const PlanInput& input, const Candidate& candidate);

// Least device memory over the groups' choices: coordinate descent from both extremes (all to the
// host; all that can be recomputed), one slot a ring, sums over ranks not delayed.
Candidate least_device_memory(const SearchSpace& space);

// The best plan that single moves reach from `start` (which fits), by at most that many
// evaluations: places of units, pairs of them, depths of rings, positions of updates; with
// `host_updates` also those on the host.
Plan improved(const SearchSpace& space, Plan start, const Budgets& budgets, int evaluations,
              bool host_updates = false);

// Solves the linear program of every group size for the report's bound and certificates, and offers
// the plans that its solutions round to, after about `layouts` trials. `report.plan` must be the
// best plan offered so far. Returns whether one of the programs would have updates on the host that
// no pin asks for: then what it rounds to is offered to `offer_on_host`, after all others.
bool search_by_bound(const PlanInput& input, PlanReport& report, int layouts,
                     const std::function<void(Plan)>& offer,
                     const std::function<void(Plan)>& offer_on_host);

}  // namespace spillway
