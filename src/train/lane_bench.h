// Instructions made for a measurement, and when they ran on a device's lanes. Benchmarks of a
// device and calibration go through here, so that both backends are measured alike.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "graph/op.h"
#include "program/program.h"
#include "runtime/device.h"

namespace spillway {

// Instructions over buffers that follow one another in their tier. Nothing orders them but the one
// who issues.
class LaneProgram {
 public:
  explicit LaneProgram(const std::string& name);

  // An operand in a buffer of its own.
  ProgramOperand place(const char* name, Tier tier, const TensorType& type);

  // Each returns its instruction's index. `workspace`: buffer -1 for none.
  int op(const char* name, OpKind kind, const Attrs& attrs, std::vector<ProgramOperand> in,
         std::vector<ProgramOperand> out, const ProgramOperand& workspace);
  int copy(const char* name, Lane lane, const ProgramOperand& from, const ProgramOperand& to);
  // Sends `sent` to one rank and receives `received` from another.
  int exchange(const char* name, int to, const ProgramOperand& sent, int from,
               const ProgramOperand& received);

  const Program& program() const { return set.programs[0]; }
  const Instr& instr(int which) const { return program().instrs[static_cast<size_t>(which)]; }

  ProgramSet set;
  ArenaLayout layout;
  std::vector<BufferId> shifted;  // buffers whose operands LaneBench::issue may shift
};

struct TimedRun {
  const Instr* instr;
  double begin, end;  // seconds; zero is the device's choice
};

// A program on a device that this connects, warms up and gives its arenas: the device's own and
// only one. Both outlive it. The host's arena is written once, so that its pages are there.
class LaneBench {
 public:
  using Phase = std::function<void(const char* name)>;  // called after each step of start-up
  LaneBench(Device& device, const LaneProgram& program, const Phase& phase = nullptr);

  char* at(const ProgramOperand& operand) const;

  // Gives an instruction to its lane. Operands in buffers of `shifted` lie `shift` bytes further
  // than the program says: the caller keeps that within their buffers.
  Ticket issue(int which, int64_t shift = 0);
  // What `issue` gives to the lanes until it returns, timed on the device.
  std::vector<TimedRun> timed(const std::function<void()>& issue);

  Device& device() { return device_; }
  const Instr& instr(int which) const { return program_.instr(which); }

 private:
  char* at(const ProgramOperand& operand, int64_t shift) const;
  Ticket launch(const Instr& instr, int64_t shift);

  Device& device_;
  const LaneProgram& program_;
  char* base_[kTierCount];
  std::vector<std::vector<ExchangeArgs::Part>> parts_;  // by instruction; read when it runs
  std::mutex mutex_;
  std::vector<TimedRun> intervals_;
};

// Work of `instr` a second, from its first begin to its last end; `work` each time.
double work_rate(const std::vector<TimedRun>& all, const Instr& instr, double work);
// `work` of every op a second while any of `during` ran, begun and ended ones by their part.
double op_rate_during(const std::vector<TimedRun>& all, double work,
                      const std::vector<const Instr*>& during);

}  // namespace spillway
