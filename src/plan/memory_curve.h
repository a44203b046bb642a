// Bytes in use over one step, by class, in the planned timeline: for pictures.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace spillway {

struct MemorySample {
  double seconds = 0;
  std::map<std::string, int64_t> by_class;  // live bytes; classes that never change included
};

// One tier of program `program` along `simulation.timeline` (which must have been kept). Buffers
// that outlive an iteration count all the time, others from their first to their last access. Only
// moments at which something changes are given, at most `samples` of them.
std::vector<MemorySample> memory_curve(const ProgramSet& set, const ArenaLayout& layout,
                                       int program, const Simulation& simulation, Tier tier,
                                       size_t samples);

}  // namespace spillway
