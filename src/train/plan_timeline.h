// The lanes and the memory of a planned step over time, for traces and pictures.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "plan/plan.h"
#include "telemetry/timeline.h"

namespace spillway {

struct PlanTimeline {
  std::vector<TraceEvent> lanes;
  std::vector<TraceCounter> memory;  // "device memory", "host memory"
};

// Of the plan's train program, with at most `samples` moments of memory a tier.
PlanTimeline plan_timeline(const PlanInput& input, const Plan& plan, size_t samples);

// The same for a picture: {"seconds": S, "lanes": [[[begin, end, name], …] a device lane],
// "memory": {"device memory": [[seconds, {class: bytes}], …], …}}. Bars that a picture could not
// tell apart are one, by the name of the first.
nlohmann::ordered_json timeline_json(const PlanTimeline& timeline);

}  // namespace spillway
