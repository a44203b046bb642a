#include "plan/instr_cost.h"

#include <algorithm>

#include "graph/op_seconds.h"
#include "program/op_cost.h"

namespace spillway {
namespace {

Tier tier_of(const ProgramSet& set, const ProgramOperand& o) { return set.buffers[o.buffer].tier; }

InstrCost copy_cost(const ProgramSet& set, const Instr& instr, const Machine& machine) {
  const auto bytes = static_cast<double>(instr.in[0].bytes());
  const Tier from = tier_of(set, instr.in[0]), to = tier_of(set, instr.out[0]);
  InstrCost cost{machine.profile.copy_seconds};
  if (from == Tier::device && to == Tier::device)
    cost.seconds += 2 * bytes / machine.profile.memory_bandwidth;
  else if (from == Tier::host && to == Tier::host)  // read and written
    cost.flows[0] = {Traffic::cpu_update, 2 * bytes};
  else
    cost.flows[0] = {to == Tier::device ? Traffic::h2d : Traffic::d2h, bytes};
  return cost;
}

InstrCost exchange_cost(const Instr& instr, const Machine& machine) {
  ExchangeBytes bytes;
  for (const ProgramTransfer& t : instr.transfers)
    bytes.add(machine.place, t.peer, t.count, t.stride,
              static_cast<double>(t.bytes((t.send ? instr.in : instr.out)[t.operand])), t.send);
  return {machine.profile.exchange_seconds,
          {{{Traffic::intra_node, bytes.of(Traffic::intra_node)},
            {Traffic::network, bytes.of(Traffic::network)}}}};
}

}  // namespace

Machine machine_of(const HardwareProfile& profile, const RankPlace& place, bool bf16) {
  return {profile, place, bf16, shared_resources(profile, place.ranks_on_node)};
}

InstrCost cost_of(const ProgramSet& set, const Program& program, const Instr& instr,
                  const Machine& machine) {
  switch (instr.kind) {
    case InstrKind::copy:
      return copy_cost(set, instr, machine);
    case InstrKind::exchange:
      return exchange_cost(instr, machine);
    case InstrKind::save: {  // at best; disks are not in the profile
      const bool from_device = tier_of(set, instr.in[0]) == Tier::device;
      const auto bytes = static_cast<double>(instr.in[0].bytes());
      return {machine.profile.copy_seconds,
              {{{from_device ? Traffic::d2h : Traffic::cpu_update, bytes}}}};
    }
    case InstrKind::op:
      break;
  }
  if (instr.lane == Lane::cpu)
    return {machine.profile.launch_seconds,
            {{{Traffic::cpu_update, op_cost(program, instr).bytes}}}};
  return {op_seconds(instr.op, program.attrs[instr.attrs], input_types(instr), machine.profile,
                     machine.bf16)};
}

double seconds_alone(const InstrCost& cost, const Machine& machine) {
  ByTraffic bytes{};
  for (const InstrCost::Flow& flow : cost.flows)
    bytes[static_cast<size_t>(flow.kind)] += flow.bytes;
  return cost.seconds + seconds_alone(machine.resources, bytes);
}

}  // namespace spillway
