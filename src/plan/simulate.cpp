#include <algorithm>
#include <array>

#include "graph/op_seconds.h"
#include "plan/plan.h"

namespace spillway {
namespace {

double seconds_of(const Program& program, const Instr& instr, const HardwareProfile& profile,
                  bool bf16) {
  switch (instr.kind) {
    case InstrKind::save:  // at best; disks are not in the profile
      return static_cast<double>(instr.in[0].bytes()) / profile.memory_bandwidth;
    case InstrKind::copy: {
      const double rate = instr.lane == Lane::h2d   ? profile.h2d_bandwidth
                          : instr.lane == Lane::d2h ? profile.d2h_bandwidth
                                                    : profile.memory_bandwidth / 2;
      return profile.copy_seconds + static_cast<double>(instr.in[0].bytes()) / rate;
    }
    case InstrKind::exchange: {
      double sent = 0, received = 0;
      for (const ProgramTransfer& t : instr.transfers)
        (t.send ? sent : received) +=
            static_cast<double>(t.bytes((t.send ? instr.in : instr.out)[t.operand])) * t.count;
      const double rate = profile.intra_node_bandwidth > 0 ? profile.intra_node_bandwidth
                                                           : profile.memory_bandwidth;
      return profile.copy_seconds + std::max(sent, received) / rate;
    }
    case InstrKind::op:
      break;
  }
  std::vector<TensorType> in;
  for (const ProgramOperand& o : instr.in) in.push_back({o.dtype, o.dims});
  return op_seconds(instr.op, program.attrs[instr.attrs], in, profile, bf16);
}

}  // namespace

// Waits point backward in issue order, so one pass over the unrolled program times it exactly.
Simulation simulate(ProgramSet& set, int program_index, const HardwareProfile& profile, bool bf16,
                    bool keep_timeline) {
  Program& program = set.programs[program_index];
  Simulation result;
  std::vector<double> end(program.instrs.size(), 0);
  std::array<double, kLaneCount> lane_end{};
  for (Instr& instr : program.instrs)
    instr.planned_us = static_cast<float>(seconds_of(program, instr, profile, bf16) * 1e6);
  for (const Segment& segment : program.segments) {
    for (int32_t iteration = 0; iteration < segment.trip; ++iteration) {
      for (InstrId i = segment.begin; i < segment.end; ++i) {
        const Instr& instr = program.instrs[i];
        double& ready = lane_end[static_cast<int>(instr.lane)];
        double begin = ready, copies = ready;
        for (const Wait& w : instr.waits) {
          begin = std::max(begin, end[w.on]);
          if (const Lane on = program.instrs[w.on].lane; on == Lane::h2d || on == Lane::d2h)
            copies = std::max(copies, end[w.on]);
        }
        // Compute that waits for a copy is exposed transfer; the last copies' tail is added below.
        if (instr.lane == Lane::compute) {
          result.exposed_transfer_seconds += copies - ready;
        }
        const double seconds = instr.planned_us * 1e-6;
        ready = end[i] = begin + seconds;
        if (keep_timeline) result.timeline.push_back({i, instr.lane, begin, ready});
      }
    }
  }
  result.step_seconds = *std::max_element(lane_end.begin(), lane_end.end());
  const double tail =
      std::max(lane_end[static_cast<int>(Lane::h2d)], lane_end[static_cast<int>(Lane::d2h)]) -
      std::max(lane_end[static_cast<int>(Lane::compute)], lane_end[static_cast<int>(Lane::comm)]);
  result.exposed_transfer_seconds += std::max(0.0, tail);
  return result;
}

}  // namespace spillway
