#include "train/lane_bench.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace spillway {

LaneProgram::LaneProgram(const std::string& name) { set.programs.emplace_back().name = name; }

ProgramOperand LaneProgram::place(const char* name, Tier tier, const TensorType& type) {
  ProgramOperand operand;
  operand.buffer = static_cast<BufferId>(set.buffers.size());
  operand.dtype = type.dtype;
  operand.dims = type.dims;
  Buffer& buffer = set.buffers.emplace_back();
  buffer.name = name;
  buffer.tier = tier;
  buffer.bytes = operand.bytes();
  int64_t& end = layout.tier_bytes[static_cast<int>(tier)];
  layout.offset.push_back(end);
  layout.version_stride.push_back(round_up(buffer.bytes, 256));
  end += layout.version_stride.back();
  return operand;
}

int LaneProgram::op(const char* name, OpKind kind, const Attrs& attrs,
                    std::vector<ProgramOperand> in, std::vector<ProgramOperand> out,
                    const ProgramOperand& workspace) {
  Program& p = set.programs[0];
  Instr& instr = p.instrs.emplace_back();
  instr.name = name;
  instr.op = kind;
  instr.attrs = static_cast<int32_t>(p.attrs.size());
  p.attrs.push_back(attrs);
  instr.in = std::move(in);
  instr.out = std::move(out);
  instr.workspace = workspace;
  return static_cast<int>(p.instrs.size()) - 1;
}

int LaneProgram::copy(const char* name, Lane lane, const ProgramOperand& from,
                      const ProgramOperand& to) {
  Instr& instr = set.programs[0].instrs.emplace_back();
  instr.kind = InstrKind::copy;
  instr.lane = lane;
  instr.name = name;
  instr.in = {from};
  instr.out = {to};
  return static_cast<int>(set.programs[0].instrs.size()) - 1;
}

int LaneProgram::exchange(const char* name, int to, const ProgramOperand& sent, int from,
                          const ProgramOperand& received) {
  Program& p = set.programs[0];
  Instr& instr = p.instrs.emplace_back();
  instr.kind = InstrKind::exchange;
  instr.lane = Lane::comm;
  instr.name = name;
  instr.in = {sent};
  instr.out = {received};
  instr.transfers = {{to, true, 0}, {from, false, 0}};
  instr.sequence = static_cast<int32_t>(p.instrs.size());
  return static_cast<int>(p.instrs.size()) - 1;
}

LaneBench::LaneBench(Device& device, const LaneProgram& program, const Phase& phase)
    : device_(device), program_(program) {
  const auto done = [&](const char* name) {
    if (phase) phase(name);
  };
  device.connect(program.set);
  done("communicators connected");
  device.warm_up(program.set, program.layout);
  done("kernels warmed up");
  for (int t = 0; t < kTierCount; ++t)
    base_[t] = static_cast<char*>(
        device.reserve(static_cast<Tier>(t), std::max<int64_t>(256, program.layout.tier_bytes[t])));
  done("arenas reserved");
  std::memset(base_[1], 1, static_cast<size_t>(program.layout.tier_bytes[1]));
  for (const Instr& instr : program.program().instrs) {
    auto& parts = parts_.emplace_back();
    for (const ProgramTransfer& t : instr.transfers) {
      const ProgramOperand& o = (t.send ? instr.in : instr.out)[static_cast<size_t>(t.operand)];
      parts.push_back({t.peer, t.send, at(o), o.bytes()});
    }
  }
}

char* LaneBench::at(const ProgramOperand& o) const {
  const auto buffer = static_cast<size_t>(o.buffer);
  return base_[static_cast<int>(program_.set.buffers[buffer].tier)] +
         program_.layout.offset[buffer] + o.offset;
}

char* LaneBench::at(const ProgramOperand& o, int64_t shift) const {
  const auto& shifted = program_.shifted;
  return at(o) + (std::find(shifted.begin(), shifted.end(), o.buffer) != shifted.end() ? shift : 0);
}

Ticket LaneBench::issue(int which, int64_t shift) {
  const Instr& instr = program_.instr(which);
  switch (instr.kind) {
    case InstrKind::op:
      return launch(instr, shift);
    case InstrKind::copy:
      return device_.copy(instr.lane, at(instr.out[0], shift), at(instr.in[0], shift),
                          instr.in[0].bytes(), &instr);
    case InstrKind::exchange:
      return device_.exchange(instr.lane, {parts_[static_cast<size_t>(which)], instr.sequence},
                              &instr);
    case InstrKind::save:
      break;
  }
  internal_error("lane bench: {} cannot be issued", instr.name);
}

Ticket LaneBench::launch(const Instr& instr, int64_t shift) {
  KernelArgs args;
  args.attrs = &program_.program().attrs[static_cast<size_t>(instr.attrs)];
  for (const ProgramOperand& o : instr.in)
    args.in[args.in_count++] = {at(o, shift), o.dtype, o.dims};
  for (const ProgramOperand& o : instr.out)
    args.out[args.out_count++] = {at(o, shift), o.dtype, o.dims};
  if (instr.workspace.buffer >= 0) {
    args.workspace = at(instr.workspace);
    args.workspace_bytes = instr.workspace.bytes();
  }
  return device_.launch(Lane::compute, instr.op, args, &instr);
}

std::vector<TimedRun> LaneBench::timed(const std::function<void()>& issue) {
  intervals_.clear();
  device_.record_times(
      [](void* context, Lane, const Instr* instr, const LaneTimes& times) {
        LaneBench& bench = *static_cast<LaneBench*>(context);
        const std::lock_guard lock(bench.mutex_);
        bench.intervals_.push_back({instr, times.begin, times.end});
      },
      this);
  issue();
  device_.synchronise_all();
  device_.record_times(nullptr, nullptr);
  return intervals_;
}

namespace {

// From the first begin to the last end of any of `of`.
std::pair<double, double> span_of(const std::vector<TimedRun>& all,
                                  const std::vector<const Instr*>& of) {
  double begin = HUGE_VAL, end = 0;
  for (const TimedRun& i : all)
    if (std::find(of.begin(), of.end(), i.instr) != of.end()) {
      begin = std::min(begin, i.begin);
      end = std::max(end, i.end);
    }
  return {begin, end};
}

}  // namespace

double work_rate(const std::vector<TimedRun>& all, const Instr& instr, double work) {
  const auto [begin, end] = span_of(all, {&instr});
  const auto count =
      std::count_if(all.begin(), all.end(), [&](const TimedRun& i) { return i.instr == &instr; });
  return end > begin ? static_cast<double>(count) * work / (end - begin) : 0;
}

double op_rate_during(const std::vector<TimedRun>& all, double work,
                      const std::vector<const Instr*>& during) {
  const auto [begin, end] = span_of(all, during);
  double done = 0;
  for (const TimedRun& i : all)
    if (i.instr->kind == InstrKind::op && i.end > i.begin)
      done += std::max(0.0, std::min(end, i.end) - std::max(begin, i.begin)) / (i.end - i.begin);
  return end > begin ? done * work / (end - begin) : 0;
}

}  // namespace spillway
