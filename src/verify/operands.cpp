// Each instruction by itself: its kind's rules, bounds, declared against required accesses, and
// operands that collide within it.
#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "verify/passes.h"

namespace spillway::verify_detail {
namespace {

constexpr int64_t kAnyRound = -1;

// What an access goes to in iteration `round`; for kAnyRound, equal targets are equal in every
// iteration, but unequal ones may meet.
struct Target {
  BufferId buffer;
  int32_t base, step;
  bool write;
  friend bool operator==(const Target&, const Target&) = default;
};

Target target_of(const ProgramSet& set, const Access& a, int64_t round) {
  const int32_t versions = set.buffers[a.buffer].versions;
  if (round != kAnyRound)
    return {a.buffer, floor_mod(a.version.base + a.version.step * round, versions), 0, a.write};
  return {a.buffer, floor_mod(a.version.base, versions), floor_mod(a.version.step, versions),
          a.write};
}

struct Gap {
  int64_t begin = 0, end = 0;
};

// The first part of `a` that `cover` leaves out; empty if none.
Gap uncovered(const ProgramSet& set, const Access& a, const std::vector<Access>& cover,
              int64_t round) {
  const Target target = target_of(set, a, round);
  int64_t at = a.offset;
  const int64_t end = a.offset + a.bytes;
  for (bool moved = true; moved && at < end;) {
    moved = false;
    for (const Access& c : cover)
      if (c.offset <= at && c.offset + c.bytes > at && target_of(set, c, round) == target) {
        at = c.offset + c.bytes;
        moved = true;
      }
  }
  if (at >= end) return {};
  int64_t stop = end;
  for (const Access& c : cover)
    if (c.offset > at && c.offset < stop && target_of(set, c, round) == target) stop = c.offset;
  return {at, stop};
}

class InstrCheck {
 public:
  InstrCheck(const ProgramSet& set, const ArenaLayout& layout, Report& report)
      : set_(set), layout_(layout), report_(report) {}

  void check(const Program& program, const Instr& instr, int32_t trip) {
    program_ = &program;
    instr_ = &instr;
    required_.clear();
    required_access(instr, required_);
    rounds_ = 1;
    for (const auto* list : {&std::as_const(required_), &instr.access})
      for (const Access& a : *list)
        rounds_ = std::min<int64_t>(
            trip, std::lcm(rounds_, period(a.version, set_.buffers[a.buffer].versions)));
    bounds();
    declared();
    kind();
    collisions();
  }

 private:
  void add(std::string what, BufferId buffer = -1, int64_t begin = 0, int64_t end = 0) {
    report_.add({std::move(what), program_->name, instr_->name, "",
                 buffer < 0 ? "" : set_.buffers[buffer].name, begin, end});
  }

  void bounds() {
    for (const std::vector<Access>* list : {&std::as_const(required_), &instr_->access})
      for (const Access& a : *list)
        if (a.offset < 0 || a.bytes < 0 || a.offset + a.bytes > set_.buffers[a.buffer].bytes)
          add("an access reaches beyond its buffer", a.buffer, a.offset, a.offset + a.bytes);
    for (const auto* list : {&instr_->in, &instr_->out})
      for (const ProgramOperand& o : *list)
        if (o.bytes() > 0 && o.offset % size_of(o.dtype) != 0)
          add("an operand is not aligned to its elements", o.buffer, o.offset,
              o.offset + o.bytes());
  }

  void declared() {
    if (declared_in(kAnyRound, false)) return;
    for (int64_t round = 0; round < rounds_; ++round) declared_in(round, true);
  }

  bool declared_in(int64_t round, bool report) {
    bool equal = true;
    for (const bool forward : {true, false}) {
      const std::vector<Access>& cover = forward ? instr_->access : required_;
      for (const Access& a : forward ? required_ : instr_->access) {
        const Gap gap = uncovered(set_, a, cover, round);
        if (gap.begin == gap.end) continue;
        equal = false;
        if (!report) return false;
        const char* verb = a.write ? "write" : "read";
        add(forward ? fmt::format("{}s bytes that it does not declare", verb)
                    : fmt::format("declares a {} that no operand makes", verb),
            a.buffer, gap.begin, gap.end);
      }
    }
    return equal;
  }

  void tiers(const std::vector<ProgramOperand>& list, Tier tier) {
    for (const ProgramOperand& o : list)
      if (o.bytes() > 0 && set_.buffers[o.buffer].tier != tier)
        add("an operand stands in the wrong memory tier for its lane", o.buffer);
  }

  static bool belongs(const Instr& i) {
    switch (i.kind) {
      case InstrKind::op:
        return i.lane == Lane::compute || i.lane == Lane::cpu;
      case InstrKind::exchange:
        return i.lane == Lane::comm;
      case InstrKind::copy:
        return i.lane != Lane::io;
      case InstrKind::save:
        return i.lane == Lane::io;
    }
    return false;
  }

  void kind() {
    const Instr& i = *instr_;
    const bool op = i.kind == InstrKind::op, exchange = i.kind == InstrKind::exchange;
    if (!belongs(i)) add(fmt::format("does not belong on lane {}", lane_name(i.lane)));
    if (!exchange && !i.transfers.empty()) add("transfers outside an exchange");
    if (op) {
      const Tier tier = i.lane == Lane::cpu ? Tier::host : Tier::device;
      tiers(i.in, tier);
      tiers(i.out, tier);
      if (i.workspace.buffer != -1) tiers({i.workspace}, tier);
    }
    if (i.kind == InstrKind::copy) {
      if (i.in.size() != 1 || i.out.size() != 1 || i.workspace.buffer != -1)
        return add("a copy is from one operand to one operand");
      if (i.in[0].bytes() != i.out[0].bytes()) add("a copy between ranges of different sizes");
      const bool from_host = i.lane == Lane::h2d || i.lane == Lane::cpu;
      const bool to_host = i.lane == Lane::d2h || i.lane == Lane::cpu;
      tiers(i.in, from_host ? Tier::host : Tier::device);
      tiers(i.out, to_host ? Tier::host : Tier::device);
    }
    if (i.kind == InstrKind::save) {
      if (i.in.size() != 1 || !i.out.empty()) return add("a save is of one operand");
      const bool on_host = i.in[0].bytes() == 0 || set_.buffers[i.in[0].buffer].tier == Tier::host;
      if (on_host != (i.workspace.buffer == -1))
        add("a save needs host workspace if it reads the device, and none otherwise");
      if (i.workspace.buffer != -1) tiers({i.workspace}, Tier::host);
    }
    if (exchange) transfers();
  }

  void transfers() {
    std::vector<int> received(instr_->out.size(), 0);
    for (const ProgramTransfer& t : instr_->transfers)
      if (!t.send) ++received[t.operand];
    for (size_t k = 0; k < received.size(); ++k)
      if (received[k] != 1 && instr_->out[k].bytes() > 0)
        add("an exchange must receive each output once", instr_->out[k].buffer);
  }

  struct Place {
    Tier tier;
    int64_t begin, end;
    bool meets(const Place& o) const { return tier == o.tier && begin < o.end && o.begin < end; }
    bool same(const Place& o) const { return tier == o.tier && begin == o.begin && end == o.end; }
  };
  Place place(const ProgramOperand& o, int64_t iteration) const {
    if (o.bytes() == 0) return {Tier::device, 0, 0};
    const Buffer& b = set_.buffers[o.buffer];
    const int64_t version = floor_mod(o.version.base + o.version.step * iteration, b.versions);
    const int64_t begin =
        layout_.offset[o.buffer] + version * layout_.version_stride[o.buffer] + o.offset;
    return {b.tier, begin, begin + o.bytes()};
  }

  // Within one instruction nothing is ordered: an output may meet an input only by being the very
  // same range (an op's update in place), and meets no other output and no workspace.
  void collisions() {
    const Instr& i = *instr_;
    std::vector<Place> in(i.in.size()), out(i.out.size());
    for (int64_t round = 0; round < rounds_; ++round) {
      for (size_t k = 0; k < in.size(); ++k) in[k] = place(i.in[k], round);
      for (size_t k = 0; k < out.size(); ++k) out[k] = place(i.out[k], round);
      const Place scratch =
          i.workspace.buffer == -1 ? Place{Tier::device, 0, 0} : place(i.workspace, round);
      for (size_t k = 0; k < in.size(); ++k)
        if (in[k].meets(scratch)) collision(i.in[k], in[k]);
      for (size_t k = 0; k < out.size(); ++k) {
        if (out[k].meets(scratch)) collision(i.out[k], out[k]);
        for (size_t m = 0; m < k; ++m)
          if (out[k].meets(out[m])) collision(i.out[k], out[k]);
        for (const Place& p : in)
          if (out[k].meets(p) && !(i.kind == InstrKind::op && out[k].same(p)))
            collision(i.out[k], out[k]);
      }
    }
  }
  void collision(const ProgramOperand& o, const Place& p) {
    add("operands of one instruction overlap", o.buffer, p.begin, p.end);
  }

  const ProgramSet& set_;
  const ArenaLayout& layout_;
  Report& report_;
  const Program* program_ = nullptr;
  const Instr* instr_ = nullptr;
  std::vector<Access> required_;
  int64_t rounds_ = 1;  // iterations until every version of the instruction comes round again
};

}  // namespace

void check_instructions(const ProgramSet& set, const ArenaLayout& layout, Report& report) {
  InstrCheck check(set, layout, report);
  for (const Program& program : set.programs)
    for (const Segment& segment : program.segments)
      for (InstrId id = segment.begin; id < segment.end && segment.trip > 0; ++id) {
        if (report.full()) return;
        check.check(program, program.instrs[id], segment.trip);
      }
}

}  // namespace spillway::verify_detail
