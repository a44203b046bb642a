// A synchronised program in virtual time: every lane in the program's order, an instruction when
// those it waits for have ended, transfers at the rates that max-min fair sharing of links,
// switches, host memory and network gives them.
#pragma once

#include <array>
#include <vector>

#include "plan/instr_cost.h"

namespace spillway {

struct SimulatedInstr {
  int32_t instr = 0;
  Lane lane = Lane::compute;
  double begin = 0, end = 0;  // seconds
};

using ByLane = std::array<double, kLaneCount>;
// Of what copies between the tiers take, both ways.
inline double copies_of(const ByLane& seconds) {
  return seconds[static_cast<size_t>(Lane::h2d)] + seconds[static_cast<size_t>(Lane::d2h)];
}

struct Simulation {
  double step_seconds = 0;
  ByLane busy{};  // seconds that each lane has an instruction under way
  // Seconds that the compute lane is idle, before and after its last instruction, by the lane that
  // it waits for. Where that lane waits itself, its wait counts for the lane that it waits for, and
  // so on: shortening the instructions that are charged is what would shorten the step. With
  // busy[compute] they add up to step_seconds.
  ByLane exposed{};
  std::vector<SimulatedInstr> timeline;  // in issue order; filled on request

  double of(Lane lane) const { return exposed[static_cast<size_t>(lane)]; }
};

// Fills Instr::planned_us as well: what each instruction takes while nothing else moves.
Simulation simulate(ProgramSet& set, int program, const Machine& machine,
                    bool keep_timeline = false);

}  // namespace spillway
