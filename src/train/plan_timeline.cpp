#include "train/plan_timeline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "plan/memory_curve.h"

namespace spillway {

PlanTimeline plan_timeline(const PlanInput& input, const Plan& plan, size_t samples) {
  // A copy: the watchdog may read the program's planned times, which simulating writes.
  ProgramSet set = plan.lowered.set;
  const Simulation simulation = simulate(set, 0, machine_of(input), true);
  PlanTimeline timeline;
  for (const SimulatedInstr& i : simulation.timeline)
    timeline.lanes.push_back({set.programs[0].instrs[i.instr].name, i.lane, i.begin, i.end});
  for (const auto& [tier, name] :
       {std::pair{Tier::device, "device memory"}, std::pair{Tier::host, "host memory"}})
    for (const MemorySample& m : memory_curve(set, plan.layout, 0, simulation, tier, samples))
      timeline.memory.push_back({name, m.seconds, m.by_class});
  return timeline;
}

nlohmann::ordered_json timeline_json(const PlanTimeline& timeline) {
  constexpr double kBars = 1000;  // that a lane has at most, of each kind
  double end = 0;
  for (const TraceEvent& e : timeline.lanes) end = std::max(end, e.end);
  const double apart = end / kBars;
  std::array<std::vector<TraceEvent>, kDeviceLaneCount> lanes;
  for (const TraceEvent& e : timeline.lanes) {
    if (static_cast<int>(e.lane) >= kDeviceLaneCount) continue;
    std::vector<TraceEvent>& bars = lanes[static_cast<size_t>(e.lane)];
    if (!bars.empty() && e.begin - bars.back().end < apart && e.end - bars.back().begin < apart)
      bars.back().end = e.end;
    else
      bars.push_back(e);
  }
  const auto rounded = [](double seconds) { return std::round(seconds * 1e7) / 1e7; };
  nlohmann::ordered_json j;
  j["seconds"] = end;
  j["lanes"] = nlohmann::ordered_json::array();
  for (const auto& bars : lanes) {
    nlohmann::ordered_json lane = nlohmann::ordered_json::array();
    for (const TraceEvent& e : bars) lane.push_back({rounded(e.begin), rounded(e.end), e.name});
    j["lanes"].push_back(std::move(lane));
  }
  j["memory"] = nlohmann::ordered_json::object();
  for (const TraceCounter& c : timeline.memory)
    j["memory"][c.name].push_back({rounded(c.seconds), c.values});
  return j;
}

}  // namespace spillway
