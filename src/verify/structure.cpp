// What can be judged without running anything: ids, the layout, and each instruction by itself.
#include <algorithm>
#include <numeric>
#include <string>

#include "base/error.h"
#include "verify/passes.h"

namespace spillway::verify_detail {
namespace {

bool valid_operand(const ProgramSet& set, const ProgramOperand& o) {
  for (int64_t d : o.dims.d)
    if (d < 0) return false;
  return o.bytes() == 0 || (o.buffer >= 0 && o.buffer < static_cast<int32_t>(set.buffers.size()));
}

// What is wrong with the ids of one instruction; "" if nothing.
std::string id_error(const ProgramSet& set, const Program& program, const Instr& instr) {
  for (const auto* list : {&instr.in, &instr.out})
    for (const ProgramOperand& o : *list)
      if (!valid_operand(set, o)) return "operand names no buffer or has a negative shape";
  if (instr.workspace.buffer != -1 && !valid_operand(set, instr.workspace))
    return "workspace names no buffer or has a negative shape";
  for (const Access& a : instr.access)
    if (a.buffer < 0 || a.buffer >= static_cast<int32_t>(set.buffers.size()))
      return "access names no buffer";
  for (const Wait& w : instr.waits)
    if (w.on < 0 || w.on >= static_cast<int32_t>(program.instrs.size()))
      return "wait names no instruction";
  for (const ProgramTransfer& t : instr.transfers)
    if (t.operand < 0 || t.operand >= std::ssize(t.send ? instr.in : instr.out))
      return "transfer names no operand";
    else if (t.count < 1 || t.stride < 1 || (t.same && !t.send) ||
             (!t.same && (t.send ? instr.in : instr.out)[t.operand].dims.count() % t.count != 0))
      return "transfer does not cut its operand evenly";
  if (instr.kind == InstrKind::op && instr.attrs >= std::ssize(program.attrs))
    return "attributes are not in the program";
  return "";
}

}  // namespace

int64_t period(const Affine& version, int32_t versions) {
  const int32_t step = floor_mod(version.step, versions);
  return versions / std::gcd(step, versions);
}

void required_access(const Instr& instr, std::vector<Access>& out) {
  auto add = [&](const ProgramOperand& o, bool write) {
    if (o.bytes() > 0) out.push_back({o.buffer, o.version, o.offset, o.bytes(), write});
  };
  for (const ProgramOperand& o : instr.in) add(o, false);
  for (const ProgramOperand& o : instr.out) {
    if (o.accumulate && instr.accumulate) add(o, false);
    add(o, true);
  }
  if (instr.workspace.buffer != -1) add(instr.workspace, true);
}

bool check_structure(const ProgramSet& set, const ArenaLayout& layout, Report& report) {
  if (layout.offset.size() != set.buffers.size() ||
      layout.version_stride.size() != set.buffers.size()) {
    report.add({"the layout does not cover the buffers", "", "", "", "", 0, 0});
    return false;
  }
  for (const Buffer& b : set.buffers)
    if (b.bytes < 0 || b.versions < 1 || static_cast<int>(b.tier) >= kTierCount)
      report.add({"a buffer of negative size, no version or no tier", "", "", "", b.name, 0, 0});
  for (const Program& program : set.programs) {
    InstrId done = 0;
    for (const Segment& s : program.segments) {
      if (s.trip < 0 || s.begin < done || s.end < s.begin || s.end > std::ssize(program.instrs))
        report.add({fmt::format("segment \"{}\" is out of order or out of range", s.name),
                    program.name, "", "", "", 0, 0});
      done = s.end;
    }
    for (const Instr& instr : program.instrs) {
      if (static_cast<int>(instr.lane) >= kLaneCount)
        report.add({"no such lane", program.name, instr.name, "", "", 0, 0});
      const std::string error = id_error(set, program, instr);
      if (!error.empty()) report.add({error, program.name, instr.name, "", "", 0, 0});
    }
  }
  return report.findings.empty();
}

void check_layout(const ProgramSet& set, const ArenaLayout& layout, const Limits& limits,
                  Report& report) {
  struct Piece {
    int64_t begin, end;
    BufferId buffer;
  };
  for (int tier = 0; tier < kTierCount; ++tier) {
    const int64_t size = layout.tier_bytes[tier];
    if (size > limits.tier_bytes[tier])
      report.add({fmt::format("the {} arena of {} bytes exceeds its capacity of {}",
                              tier == 0 ? "device" : "host", size, limits.tier_bytes[tier]),
                  "", "", "", "", limits.tier_bytes[tier], size});
    std::vector<Piece> pieces;
    for (BufferId id = 0; id < std::ssize(set.buffers); ++id) {
      const Buffer& b = set.buffers[id];
      if (static_cast<int>(b.tier) != tier || b.bytes == 0) continue;
      const int64_t offset = layout.offset[id], stride = layout.version_stride[id];
      const int64_t end = offset + (b.versions - 1) * stride + b.bytes;
      if (offset % kAlignment != 0 || (b.versions > 1 && stride % kAlignment != 0))
        report.add({"a buffer is not aligned to 256 bytes", "", "", "", b.name, offset, end});
      if (b.versions > 1 && stride < b.bytes)
        report.add({"versions of a buffer overlap", "", "", "", b.name, offset, end});
      if (offset < 0 || end > size)
        report.add({"a buffer reaches beyond its arena", "", "", "", b.name, offset, end});
      for (int32_t v = 0; v < b.versions; ++v)
        pieces.push_back({offset + v * stride, offset + v * stride + b.bytes, id});
    }
    std::sort(pieces.begin(), pieces.end(),
              [](const Piece& x, const Piece& y) { return x.begin < y.begin; });
    // The pieces before this one that reach furthest: of all, and of those that own their bytes.
    const Piece *any = nullptr, *own = nullptr;
    for (const Piece& p : pieces) {
      const Buffer& b = set.buffers[p.buffer];
      // What survives the step survives every other program's use of shared bytes only alone.
      const bool exclusive = b.pinned_region || b.scope == Scope::run;
      const Piece* hit = exclusive ? any : own;
      if (hit && p.begin < hit->end && !(hit->buffer == p.buffer))
        report.add({fmt::format("bytes that must be a buffer's own are given to \"{}\" as well",
                                set.buffers[hit->buffer].name),
                    "", "", "", b.name, p.begin, std::min(p.end, hit->end)});
      if (!any || p.end > any->end) any = &p;
      if (exclusive && (!own || p.end > own->end)) own = &p;
    }
  }
}

void check_waits(const Program& program, Report& report) {
  std::vector<int32_t> segment_of(program.instrs.size(), -1);
  for (int32_t s = 0; s < std::ssize(program.segments); ++s)
    if (program.segments[s].trip > 0)
      std::fill(segment_of.begin() + program.segments[s].begin,
                segment_of.begin() + program.segments[s].end, s);
  int32_t last_sequence = -1;
  for (InstrId id = 0; id < std::ssize(program.instrs); ++id) {
    const Instr& instr = program.instrs[id];
    const int32_t segment = segment_of[id];
    if (segment < 0) continue;
    for (const Wait& w : instr.waits) {
      const Instr& on = program.instrs[w.on];
      if (on.lane == instr.lane)
        report.add({"a wait within its own lane", program.name, instr.name, on.name, "", 0, 0});
      const int32_t before = segment_of[w.on];
      const bool carried = before == segment && program.segments[segment].trip > 1;
      if (before < 0 || before > segment || (before == segment && w.on >= id && !carried))
        report.add({"a wait for what is never issued before", program.name, instr.name, on.name, "",
                    0, 0});
    }
    if (instr.kind != InstrKind::exchange) continue;
    if (instr.sequence <= last_sequence)
      report.add(
          {"exchanges are not numbered in issue order", program.name, instr.name, "", "", 0, 0});
    last_sequence = std::max(last_sequence, instr.sequence);
  }
}

}  // namespace spillway::verify_detail
