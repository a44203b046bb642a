#include "runtime/executor.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace spillway {

namespace {

constexpr uint8_t kPoison = 0xFF;
constexpr int kHostCommands = 16;  // of the caller's, between the instructions of a host lane

bool on_host(Lane lane) { return static_cast<int>(lane) >= kDeviceLaneCount; }

// What the host lanes hold at once: a program's instructions, so that the issuer never waits there.
int host_depth(const ProgramSet& set) {
  int depth = 0;
  for (const Program& program : set.programs)
    depth += static_cast<int>(std::count_if(program.instrs.begin(), program.instrs.end(),
                                            [](const Instr& i) { return on_host(i.lane); }));
  return depth + kHostCommands;
}

bool same(Affine a, Affine b) { return a.base == b.base && a.step == b.step; }

bool covered(const Instr& instr, const ProgramOperand& operand, bool write) {
  return std::any_of(instr.access.begin(), instr.access.end(), [&](const Access& a) {
    return a.buffer == operand.buffer && same(a.version, operand.version) && (a.write || !write) &&
           a.offset <= operand.offset && operand.offset + operand.bytes() <= a.offset + a.bytes;
  });
}

// Whether `instr` reads what stood in `buffer` before it.
bool reads(const Instr& instr, BufferId buffer) {
  for (const Access& a : instr.access)
    if (a.buffer == buffer && !a.write) return true;
  for (const ProgramOperand& o : instr.out)
    if (o.buffer == buffer && o.accumulate && instr.accumulate) return true;
  return false;
}

bool touches(const Instr& instr, BufferId buffer) {
  return std::any_of(instr.access.begin(), instr.access.end(),
                     [&](const Access& a) { return a.buffer == buffer; });
}

}  // namespace

Executor::Executor(const ProgramSet& set, const ArenaLayout& layout, Device& device)
    : Executor(set, layout, device, Options()) {}

Executor::Executor(const ProgramSet& set, const ArenaLayout& layout, Device& device,
                   Options options)
    : set_(set),
      layout_(layout),
      device_(device),
      on_host_wait_(options.on_host_wait),
      host_(device, host_depth(set), options.host_kernels, std::move(options.host_thread_start)) {
  if (layout.offset.size() != set.buffers.size() ||
      layout.version_stride.size() != set.buffers.size())
    internal_error("layout of {} buffers for a program set of {}", layout.offset.size(),
                   set.buffers.size());
  size_t instrs = 0;
  tables_.resize(set.programs.size());
  for (const Program& program : set.programs)
    for (const Segment& segment : program.segments)
      for (InstrId id = segment.begin; id < segment.end; ++id)
        check(program, program.instrs[id], segment.trip);
  for (int tier = 0; tier < kTierCount; ++tier)
    if (layout.tier_bytes[tier] > 0)
      base_[tier] =
          static_cast<char*>(device.reserve(static_cast<Tier>(tier), layout.tier_bytes[tier]));
  for (size_t p = 0; p < set.programs.size(); ++p) {
    const Program& program = set.programs[p];
    instrs = std::max(instrs, program.instrs.size());
    bind_exchanges(program, tables_[p]);
    if (options.poison) find_poison(program, tables_[p]);
    find_signals(program, tables_[p]);
  }
  last_ticket_.resize(instrs);
}

void Executor::check(const Program& program, const Instr& instr, int32_t trip) const {
  auto buffer = [&](BufferId id) -> const Buffer& {
    if (id < 0 || id >= static_cast<BufferId>(set_.buffers.size()))
      internal_error("{}: {} names buffer {}, which does not exist", program.name, instr.name, id);
    return set_.buffers[id];
  };
  for (const Access& a : instr.access) {
    const Buffer& b = buffer(a.buffer);
    const int64_t end =
        layout_.offset[a.buffer] + (b.versions - 1) * layout_.version_stride[a.buffer] + b.bytes;
    if (a.offset < 0 || a.bytes < 0 || a.offset + a.bytes > b.bytes)
      internal_error("{}: {} touches bytes {}…{} of {}, which has {}", program.name, instr.name,
                     a.offset, a.offset + a.bytes, b.name, b.bytes);
    if (layout_.offset[a.buffer] < 0 || end > layout_.tier_bytes[static_cast<int>(b.tier)])
      internal_error("{}: buffer {} ends at byte {} of an arena of {}", program.name, b.name, end,
                     layout_.tier_bytes[static_cast<int>(b.tier)]);
  }
  auto operand = [&](const ProgramOperand& o, bool write) {
    if (!covered(instr, o, write))
      internal_error("{}: {} {} {} bytes of {} at {} without declaring it", program.name,
                     instr.name, write ? "writes" : "reads", o.bytes(), buffer(o.buffer).name,
                     o.offset);
  };
  for (const ProgramOperand& o : instr.in) operand(o, false);
  for (const ProgramOperand& o : instr.out) operand(o, true);
  if (instr.workspace.buffer >= 0) operand(instr.workspace, true);
  if (instr.in.size() > kMaxOperands || instr.out.size() > kMaxOperands)
    if (instr.kind == InstrKind::op)
      internal_error("{}: {} has more than {} operands", program.name, instr.name, kMaxOperands);
  if (instr.kind == InstrKind::op &&
      (instr.attrs < 0 || instr.attrs >= static_cast<int32_t>(program.attrs.size())))
    internal_error("{}: {} has no attributes", program.name, instr.name);
  if (instr.kind == InstrKind::copy && (instr.in.size() != 1 || instr.out.size() != 1 ||
                                        instr.in[0].bytes() != instr.out[0].bytes()))
    internal_error("{}: copy {} is not of one operand to one of the same size", program.name,
                   instr.name);
  for (const ProgramTransfer& t : instr.transfers) {
    const auto& operands = t.send ? instr.in : instr.out;
    if (t.operand < 0 || t.operand >= static_cast<int32_t>(operands.size()))
      internal_error("{}: {} transfers operand {}, which does not exist", program.name, instr.name,
                     t.operand);
    if (t.count < 1 || t.stride < 1 || (t.same && !t.send) ||
        (!t.same && operands[t.operand].dims.count() % t.count != 0))
      internal_error("{}: {} cannot cut an operand of {} elements into messages for {} peers",
                     program.name, instr.name, operands[t.operand].dims.count(), t.count);
  }
  for (const Wait& w : instr.waits)
    if (w.on < 0 || w.on >= static_cast<InstrId>(program.instrs.size()))
      internal_error("{}: {} waits on instruction {}, which does not exist", program.name,
                     instr.name, w.on);
  if (trip < 0) internal_error("{}: a segment of {} iterations", program.name, trip);
}

// The device reads an exchange's parts when it runs, so they stand here for good: one table for
// each iteration after which all versions repeat.
void Executor::bind_exchanges(const Program& program, Tables& tables) const {
  tables.first_parts.assign(program.instrs.size() + 1, 0);
  std::vector<int32_t> trip(program.instrs.size(), 0);
  for (const Segment& segment : program.segments)
    for (InstrId id = segment.begin; id < segment.end; ++id) trip[id] = segment.trip;
  for (size_t id = 0; id < program.instrs.size(); ++id) {
    const Instr& instr = program.instrs[id];
    tables.first_parts[id] = static_cast<int32_t>(tables.parts.size());
    if (instr.kind != InstrKind::exchange) continue;
    int64_t period = 1;
    for (const auto* operands : {&instr.in, &instr.out})
      for (const ProgramOperand& o : *operands)
        if (o.version.step != 0)
          period = std::min<int64_t>(std::lcm<int64_t>(period, set_.buffers[o.buffer].versions),
                                     std::max(trip[id], 1));
    // Cut short by the trip count, the tables simply never repeat.
    for (int64_t i = 0; i < period; ++i) {
      std::vector<ExchangeArgs::Part> parts;
      for (const ProgramTransfer& t : instr.transfers) {
        const ProgramOperand& o = (t.send ? instr.in : instr.out)[t.operand];
        const int64_t bytes = t.bytes(o);
        parts.push_back({t.peer, t.send, at(o.buffer, o.version, static_cast<int32_t>(i), o.offset),
                         bytes, t.count, t.stride, t.same ? 0 : bytes});
      }
      tables.parts.push_back(std::move(parts));
    }
  }
  tables.first_parts[program.instrs.size()] = static_cast<int32_t>(tables.parts.size());
}

// A buffer is poisoned after its last use in a segment's body if, in every segment that touches it,
// the first use overwrites it (nothing is carried in), all uses of a body agree on the version, and
// it is read at all (else somebody outside the program may be its reader).
void Executor::find_poison(const Program& program, Tables& tables) const {
  tables.poison.resize(program.instrs.size());
  for (BufferId b = 0; b < static_cast<BufferId>(set_.buffers.size()); ++b) {
    if (set_.buffers[b].scope != Scope::iteration) continue;
    std::vector<std::pair<InstrId, Poison>> found;
    bool eligible = true, read = false;
    for (const Segment& segment : program.segments) {
      std::vector<InstrId> users;
      const Access* first = nullptr;
      for (InstrId id = segment.begin; id < segment.end; ++id) {
        const Instr& instr = program.instrs[id];
        if (!touches(instr, b)) continue;
        if (users.empty() && reads(instr, b)) eligible = false;
        users.push_back(id);
        for (const Access& a : instr.access) {
          if (a.buffer != b) continue;
          if (!first) first = &a;
          if (!same(first->version, a.version)) eligible = false;
          if (!a.write) read = true;
        }
      }
      if (!users.empty()) found.push_back({users.back(), {b, first->version, std::move(users)}});
    }
    if (!eligible || !read) continue;
    for (auto& [id, poison] : found) {
      const Instr& last = program.instrs[id];
      // Bytes that the last user's other operands take over are not dead.
      auto range = [&](BufferId x) {
        const int64_t begin = layout_.offset[x];
        return std::pair(begin, begin + (set_.buffers[x].versions - 1) * layout_.version_stride[x] +
                                    set_.buffers[x].bytes);
      };
      const auto mine = range(b);
      const bool shared = std::any_of(last.access.begin(), last.access.end(), [&](const Access& a) {
        const auto other = range(a.buffer);
        return a.buffer != b && set_.buffers[a.buffer].tier == set_.buffers[b].tier &&
               other.first < mine.second && mine.first < other.second;
      });
      if (shared) continue;
      std::erase_if(poison.users,
                    [&](InstrId user) { return program.instrs[user].lane == last.lane; });
      tables.poison[id].push_back(std::move(poison));
    }
  }
}

// What the instructions' waits name, what poisoning waits for, and each lane's last instruction,
// which the next program's entry waits refer to.
void Executor::find_signals(const Program& program, Tables& tables) const {
  tables.signals.assign(program.instrs.size(), 0);
  InstrId last[kDeviceLaneCount] = {-1, -1, -1, -1};
  for (const Segment& segment : program.segments) {
    for (InstrId id = segment.begin; id < segment.end; ++id) {
      const Instr& instr = program.instrs[id];
      for (const Wait& wait : instr.waits)
        if (program.instrs[wait.on].lane != instr.lane) tables.signals[wait.on] = 1;
      if (!tables.poison.empty())
        for (const Poison& poison : tables.poison[id])
          for (InstrId user : poison.users) tables.signals[user] = 1;
      if (segment.trip > 0 && !on_host(instr.lane)) last[static_cast<int>(instr.lane)] = id;
    }
  }
  for (InstrId id : last)
    if (id >= 0) tables.signals[id] = 1;
}

void* Executor::address(BufferId buffer, int32_t version, int64_t offset) const {
  const Buffer& b = set_.buffers[buffer];
  int32_t slot = 0;
  if (b.versions > 1) {
    slot = version % b.versions;
    if (slot < 0) slot += b.versions;
  }
  return base_[static_cast<int>(b.tier)] + layout_.offset[buffer] +
         slot * layout_.version_stride[buffer] + offset;
}

Ticket Executor::issue(const Program& program, const Tables& tables, InstrId id, int32_t iteration,
                       int32_t micro, const Ticket (&host_waits)[kLaneCount]) {
  const Instr& instr = program.instrs[id];
  auto pointer = [&](const ProgramOperand& o) {
    return at(o.buffer, o.version, iteration, o.offset);
  };
  switch (instr.kind) {
    case InstrKind::op: {
      KernelArgs args;
      for (const ProgramOperand& o : instr.in)
        args.in[args.in_count++] = {pointer(o), o.dtype, o.dims};
      for (const ProgramOperand& o : instr.out)
        args.out[args.out_count++] = {pointer(o), o.dtype, o.dims};
      if (instr.workspace.buffer >= 0) {
        args.workspace = pointer(instr.workspace);
        args.workspace_bytes = instr.workspace.bytes();
      }
      args.attrs = &program.attrs[instr.attrs];
      args.accumulate = instr.accumulate;
      args.micro = micro;
      if (on_host(instr.lane)) return host_.launch(instr.op, args, host_waits);
      return device_.launch(instr.lane, instr.op, args, &instr);
    }
    case InstrKind::copy:
      if (instr.lane == Lane::cpu)
        return host_.copy(pointer(instr.out[0]), pointer(instr.in[0]), instr.in[0].bytes(),
                          host_waits);
      return device_.copy(instr.lane, pointer(instr.out[0]), pointer(instr.in[0]),
                          instr.in[0].bytes(), &instr);
    case InstrKind::save: {
      const bool staged = instr.workspace.buffer >= 0;
      return host_.save(pointer(instr.in[0]), instr.in[0].bytes(),
                        staged ? pointer(instr.workspace) : nullptr,
                        staged ? instr.workspace.bytes() : 0, host_waits);
    }
    case InstrKind::exchange: {
      const int32_t first = tables.first_parts[id];
      const int32_t period = tables.first_parts[id + 1] - first;
      return device_.exchange(instr.lane,
                              {tables.parts[first + iteration % period], instr.sequence}, &instr);
    }
  }
  internal_error("{}: instruction {} of an unknown kind", program.name, instr.name);
}

// What the cpu lane was given before an update is waited for with it, and counts as part of it.
void Executor::wait_for_update(Ticket ticket) { host_.synchronise(Lane::cpu, ticket); }

void Executor::wait_for_host(Lane lane, Ticket ticket) {
  if (lane == Lane::cpu && ticket <= last_update_) return wait_for_update(ticket);
  if (host_.completed(lane) < ticket) {
    const auto begin = std::chrono::steady_clock::now();
    if (on_host_wait_) on_host_wait_(true);
    host_.synchronise(lane, ticket);
    if (on_host_wait_) on_host_wait_(false);
    stall_seconds_ +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  host_.synchronise(lane, ticket);
}

double Executor::take_stall_seconds() { return std::exchange(stall_seconds_, 0.0); }

void Executor::run(int index, int micro_override) {
  if (index < 0 || index >= static_cast<int>(set_.programs.size()))
    internal_error("program {} of {} was to be run", index, set_.programs.size());
  const Program& program = set_.programs[index];
  const Tables& tables = tables_[index];
  std::fill(last_ticket_.begin(), last_ticket_.end(), 0);
  for (const Segment& segment : program.segments) {
    for (int32_t i = 0; i < segment.trip; ++i) {
      for (InstrId id = segment.begin; id < segment.end; ++id) {
        const Instr& instr = program.instrs[id];
        const int lane = static_cast<int>(instr.lane);
        Ticket host_waits[kLaneCount] = {};  // of an instruction on a host lane
        auto wait = [&](Lane other, Ticket ticket) {
          if (other == instr.lane || ticket == 0) return;
          if (on_host(instr.lane))
            host_waits[static_cast<int>(other)] =
                std::max(host_waits[static_cast<int>(other)], ticket);
          else if (on_host(other))
            wait_for_host(other, ticket);
          else
            device_.wait(instr.lane, other, ticket);
        };
        for (int l = 0; l < kLaneCount; ++l)
          if (instr.entry_waits >> l & 1) wait(static_cast<Lane>(l), program_end_[l]);
        auto wait_on = [&](InstrId on) { wait(program.instrs[on].lane, last_ticket_[on]); };
        for (const Wait& w : instr.waits) wait_on(w.on);
        const int32_t micro =
            micro_override >= 0 ? micro_override : instr.micro.base + instr.micro.step * i;
        Ticket ticket = issue(program, tables, id, i, micro, host_waits);
        // Whoever waits on this instruction then waits on the fill as well, so that the fill cannot
        // fall on what comes after.
        if (!tables.poison.empty()) {
          for (const Poison& poison : tables.poison[id]) {
            for (InstrId user : poison.users) wait_on(user);
            ticket = device_.fill(instr.lane, at(poison.buffer, poison.version, i, 0), kPoison,
                                  set_.buffers[poison.buffer].bytes);
          }
        }
        if (tables.signals[id] && !on_host(instr.lane)) device_.signal(instr.lane);
        last_ticket_[id] = ticket;
        issued_[lane] = ticket;
        if (instr.kind == InstrKind::op && on_host(instr.lane)) last_update_ = ticket;
      }
    }
  }
  std::copy(std::begin(issued_), std::end(issued_), std::begin(program_end_));
}

void Executor::finish() {
  device_.synchronise_all();
  if (last_update_ > 0) wait_for_update(last_update_);
}

}  // namespace spillway
