#include <algorithm>

#include "plan/plan.h"
#include "plan/search.h"

namespace spillway {
namespace {

constexpr int64_t kLeastPiece = 64 << 10;

// Bytes of each class. Buffers that share bytes are counted as the one region they share.
TierUse use_of(const std::vector<Buffer>& buffers, const ArenaLayout& layout, Tier tier) {
  TierUse use;
  use.peak = layout.tier_bytes[static_cast<int>(tier)];
  int64_t own = 0;
  for (size_t b = 0; b < buffers.size(); ++b) {
    const Buffer& buffer = buffers[b];
    if (buffer.tier != tier || !buffer.pinned_region) continue;
    const int64_t bytes = layout.version_stride[b] * buffer.versions;
    use.by_class[buffer.place] += bytes;
    own += bytes;
  }
  if (use.peak > own) use.by_class["transients and workspace"] = use.peak - own;
  return use;
}

// Nothing of the host's is shared, so its arena needs no packing to be known.
bool copy_fits(const PlanInput& input, const std::vector<Buffer>& buffers, BufferId staging,
               int64_t saved) {
  if (!input.snapshots) return false;
  constexpr int64_t kAlign = 256;
  int64_t bytes = round_up(saved, kAlign);
  for (const Buffer& b : buffers)
    if (b.tier == Tier::host && &b != &buffers[staging])
      bytes += round_up(b.bytes, kAlign) * b.versions;
  return bytes <= input.budgets.host;
}

// Of copies between the tiers: as short as their start-up time allows.
int64_t piece_bytes(const Machine& machine) {
  constexpr double kStartUp = 0.01;  // part of a piece's time, at most
  const double rate = std::max(rate_alone(machine.resources, Traffic::h2d),
                               rate_alone(machine.resources, Traffic::d2h));
  return std::max<int64_t>(kLeastPiece,
                           static_cast<int64_t>(machine.profile.copy_seconds / kStartUp * rate));
}

}  // namespace

std::vector<const Schedule*> schedules_of(const PlanInput& input, const ScheduleChoice& choice) {
  std::vector<const Schedule*> schedules = {&input.train->get(choice)};
  if (input.evaluate != nullptr) schedules.push_back(&input.evaluate->get(choice));
  if (input.checks) schedules.push_back(&input.train->check(choice));
  if (const Schedule* flush = input.train->flush(choice)) schedules.push_back(flush);
  return schedules;
}

Plan lay_out(const PlanInput& input, const Placement& placement, const ScheduleChoice& schedule) {
  Plan plan;
  const Schedule& train = input.train->get(schedule);
  plan.placement = placement;
  for (const PlaceUnit& unit : place_units(train)) {
    Where& where = plan.placement.where.try_emplace(unit.key, Where::device).first->second;
    if (unit.state && schedule.updates_on_host(unit.key.second)) where = Where::host;
  }
  plan.schedule = schedule;
  plan.lowered = lower(schedules_of(input, schedule), placement, input.rules, input.staging_bytes);
  const Machine machine = machine_of(input);
  const ProgramSet& set = plan.lowered.set;
  order_copies(plan.lowered.set, piece_bytes(machine),
               [&](const Program& program, const Instr& instr) {
                 return seconds_alone(cost_of(set, program, instr, machine), machine);
               });
  if (input.saves)
    add_save_program(plan.lowered, train,
                     copy_fits(input, plan.lowered.set.buffers, plan.lowered.io.at("staging"),
                               saved_bytes(train, plan.lowered.homes)));
  plan.layout = pack(plan.lowered.set);
  plan.device = use_of(plan.lowered.set.buffers, plan.layout, Tier::device);
  plan.host = use_of(plan.lowered.set.buffers, plan.layout, Tier::host);
  return plan;
}

MemoryUse memory_of(const PlanInput& input, const Placement& placement,
                    const ScheduleChoice& schedule) {
  const Schedule& train = input.train->get(schedule);
  Outline outlined =
      outline(schedules_of(input, schedule), placement, input.rules, input.staging_bytes);
  if (input.saves) {  // as add_save_program does
    const int64_t saved = saved_bytes(train, outlined.homes);
    const BufferId staging = outlined.io.at("staging");
    if (copy_fits(input, outlined.buffers, staging, saved)) {
      outlined.buffers[staging].place = "snapshot";
      outlined.buffers[staging].bytes = std::max<int64_t>(saved, 1);
    }
  }
  const ArenaLayout layout = pack(outlined);
  return {use_of(outlined.buffers, layout, Tier::device),
          use_of(outlined.buffers, layout, Tier::host)};
}

Peaks peaks_of(const PlanInput& input, const Candidate& candidate) {
  const MemoryUse use = memory_of(input, candidate.placement, candidate.schedule);
  return {use.device.peak, use.host.peak};
}

void synchronise_and_time(const PlanInput& input, Plan& plan) {
  synchronise(plan.lowered.set, plan.layout);
  const Simulation s = simulate(plan.lowered.set, 0, machine_of(input));
  plan.step_seconds = s.step_seconds;
  plan.exposed = s.exposed;
  const double peak = input.bf16 ? input.profile.peak_bf16 : input.profile.peak_f32;
  plan.mfu = s.step_seconds > 0 ? input.flops_per_step / (s.step_seconds * peak) : 0;
}

Plan evaluate_placement(const PlanInput& input, const Placement& placement,
                        const ScheduleChoice& schedule) {
  Plan plan = lay_out(input, placement, schedule);
  synchronise_and_time(input, plan);
  return plan;
}

}  // namespace spillway
