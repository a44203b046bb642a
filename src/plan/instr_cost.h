// What instructions cost on a machine, whatever else runs there: the simulator's input.
#pragma once

#include <array>
#include <vector>

#include "config/resources.h"
#include "graph/exchange_cost.h"
#include "program/program.h"

namespace spillway {

// A device of a node and what it shares with the node's others, which do the same at the same time.
struct Machine {
  HardwareProfile profile;
  RankPlace place;
  bool bf16 = false;                      // which peak counts
  std::vector<SharedResource> resources;  // of shared_resources
};
Machine machine_of(const HardwareProfile& profile, const RankPlace& place, bool bf16);

// An instruction keeps its lane for `seconds`, and then until all of its flows have arrived. They
// move at once, as fast as what they share with other flows lets them.
struct InstrCost {
  struct Flow {
    Traffic kind = Traffic::h2d;
    double bytes = 0;  // 0: no flow
  };
  double seconds = 0;
  std::array<Flow, 2> flows{};
};

InstrCost cost_of(const ProgramSet& set, const Program& program, const Instr& instr,
                  const Machine& machine);

// What it takes while nothing else moves.
double seconds_alone(const InstrCost& cost, const Machine& machine);

}  // namespace spillway
