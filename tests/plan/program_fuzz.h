// Random small programs that are valid but for their waits: rings, versions that move with the
// iteration, segments of random trips, ops, copies and exchanges, several programs over the same
// persistent buffers, transients that share bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "oracle.h"
#include "program/program.h"

namespace spillway::fuzz {

struct Case {
  ProgramSet set;
  ArenaLayout layout;
};

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {}

  // Without waits. Transients may collide in the layout; reads that do not survive it are left out.
  Case make() {
    case_ = {};
    persistent_buffers();
    const int programs = pick(1, 2);
    for (int p = 0; p < programs; ++p) program(p);
    place();
    for (Program& p : case_.set.programs) repair(p);
    return std::move(case_);
  }

  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool chance(int percent) { return pick(1, 100) <= percent; }

 private:
  static constexpr int64_t kElement = 4;

  BufferId buffer(std::string name, Tier tier, Scope scope, int64_t bytes, int versions, bool own) {
    Buffer b;
    b.name = std::move(name);
    b.tier = tier;
    b.scope = scope;
    b.bytes = bytes;
    b.versions = versions;
    b.pinned_region = own;
    case_.set.buffers.push_back(b);
    return static_cast<BufferId>(case_.set.buffers.size()) - 1;
  }

  void persistent_buffers() {
    for (int k = 0; k < 2; ++k) {
      buffer("parameter" + std::to_string(k), Tier::device, Scope::run, 128, 1, true);
      buffer("moment" + std::to_string(k), Tier::host, Scope::run, 128, pick(1, 3), true);
      buffer("ring" + std::to_string(k), Tier::device, Scope::step, 128, pick(1, 4), true);
      buffer("spill" + std::to_string(k), Tier::host, Scope::step, 128, pick(1, 3), true);
    }
  }

  Affine version() { return {pick(0, 3), pick(0, 2)}; }

  // A random half or whole of a random buffer of the tier.
  ProgramOperand operand(Tier tier) {
    std::vector<BufferId> choice;
    for (BufferId b : visible_)
      if (case_.set.buffers[b].tier == tier) choice.push_back(b);
    ProgramOperand o;
    o.buffer = choice[pick(0, static_cast<int>(choice.size()) - 1)];
    o.version = version();
    const int part = pick(0, 3);
    const int64_t half = case_.set.buffers[o.buffer].bytes / 2;
    o.offset = part == 2 ? half : 0;
    o.dims = Dims((part == 1 || part == 2 ? half : 2 * half) / kElement);
    return o;
  }
  ProgramOperand operand(Tier tier, int64_t elements) {
    ProgramOperand o = operand(tier);
    o.offset = 0;
    o.dims = Dims(elements);
    return o;
  }

  void program(int index) {
    Program p;
    p.name = "program" + std::to_string(index);
    visible_.clear();
    for (BufferId b = 0; b < 8; ++b) visible_.push_back(b);
    const int transients = pick(1, 4);
    for (int k = 0; k < transients; ++k)
      visible_.push_back(
          buffer(p.name + ".t" + std::to_string(k), Tier::device, Scope::iteration, 128, 1, false));
    int sequence = 0;
    const int segments = pick(1, 3);
    for (int s = 0; s < segments; ++s) {
      static constexpr int kTrips[] = {1, 1, 2, 3, 4, 5, 9, 13};
      Segment segment;
      segment.name = "segment" + std::to_string(s);
      segment.trip = kTrips[pick(0, 7)];
      segment.begin = static_cast<InstrId>(p.instrs.size());
      const int body = pick(3, segment.trip > 5 ? 6 : 9);
      for (int k = 0; k < body; ++k) instruction(p, sequence);
      segment.end = static_cast<InstrId>(p.instrs.size());
      p.segments.push_back(segment);
    }
    case_.set.programs.push_back(std::move(p));
  }

  void instruction(Program& p, int& sequence) {
    Instr i;
    i.name = p.name + ".i" + std::to_string(p.instrs.size());
    const int kind = pick(0, 99);
    if (kind < 45) {
      i.kind = InstrKind::op;
      const bool on_host = chance(20);
      const Tier tier = on_host ? Tier::host : Tier::device;
      i.lane = on_host ? Lane::cpu : Lane::compute;
      i.accumulate = chance(60);
      for (int k = pick(0, 3); k > 0; --k) i.in.push_back(operand(tier));
      for (int k = pick(1, 2); k > 0; --k) {
        i.out.push_back(operand(tier));
        i.out.back().accumulate = chance(30);
      }
      if (chance(30) && !i.in.empty()) i.out[0] = i.in[0];
      if (!on_host && chance(30)) {
        i.workspace = operand(Tier::device, 16);
        i.workspace.buffer = visible_[pick(8, static_cast<int>(visible_.size()) - 1)];
      }
    } else if (kind < 85) {
      i.kind = InstrKind::copy;
      const bool up = kind < 65;
      i.lane = up ? Lane::h2d : Lane::d2h;
      const int64_t elements = chance(50) ? 32 : 16;
      i.in.push_back(operand(up ? Tier::host : Tier::device, elements));
      i.out.push_back(operand(up ? Tier::device : Tier::host, elements));
    } else {
      i.kind = InstrKind::exchange;
      i.lane = Lane::comm;
      i.sequence = sequence++;
      const int messages = pick(1, 2);
      for (int k = 0; k < messages; ++k) {
        const int64_t elements = chance(50) ? 32 : 16;
        i.in.push_back(operand(Tier::device, elements));
        i.out.push_back(operand(Tier::device, elements));
        i.transfers.push_back({1, true, k});
        i.transfers.push_back({1, false, k});
      }
    }
    p.instrs.push_back(std::move(i));
  }

  // Own bytes one after the other; transients anywhere in a region that is too small for them.
  void place() {
    ArenaLayout& layout = case_.layout;
    const size_t n = case_.set.buffers.size();
    layout.offset.assign(n, 0);
    layout.version_stride.assign(n, 256);
    int64_t top[kTierCount] = {0, 0};
    for (size_t b = 0; b < n; ++b) {
      const Buffer& buffer = case_.set.buffers[b];
      if (!buffer.pinned_region) continue;
      layout.offset[b] = top[static_cast<int>(buffer.tier)];
      top[static_cast<int>(buffer.tier)] += 256 * buffer.versions;
    }
    const int region = pick(2, 4);
    for (size_t b = 0; b < n; ++b)
      if (!case_.set.buffers[b].pinned_region)
        layout.offset[b] = top[0] + 256 * pick(0, region - 1);
    layout.tier_bytes[0] = top[0] + 256 * region;
    layout.tier_bytes[1] = top[1];
  }

  // Drops outputs and workspaces that collide, and reads of what is not there; then declares.
  void repair(Program& p) {
    for (Instr& i : p.instrs) separate(i);
    for (bool again = true; again;) {
      oracle::Judge judge(case_.set, case_.layout, {});
      const auto wrong = judge.wrong_reads(p);
      again = !wrong.empty();
      for (const auto& [id, read] : wrong) {
        Instr& i = p.instrs[id];
        // Reads are the inputs, then the accumulating outputs.
        if (read >= static_cast<int>(i.in.size())) {
          i.accumulate = false;
        } else if (i.kind == InstrKind::op) {
          i.in.erase(i.in.begin() + read);
        } else {
          ProgramOperand& o = i.in[read];
          o.buffer = case_.set.buffers[o.buffer].tier == Tier::host ? 1 : 0;
          separate(i);
        }
        break;
      }
    }
    for (Instr& i : p.instrs) declare(i);
  }

  bool collide(const ProgramOperand& x, const ProgramOperand& y, bool in_place) const {
    const Buffer &a = case_.set.buffers[x.buffer], &b = case_.set.buffers[y.buffer];
    if (a.tier != b.tier) return false;
    if (in_place && x.buffer == y.buffer && x.offset == y.offset && x.bytes() == y.bytes() &&
        x.version.base == y.version.base && x.version.step == y.version.step)
      return false;
    const auto& layout = case_.layout;
    const int64_t x0 = layout.offset[x.buffer], x1 = x0 + 256 * a.versions;
    const int64_t y0 = layout.offset[y.buffer], y1 = y0 + 256 * b.versions;
    return x0 < y1 && y0 < x1;
  }

  void separate(Instr& i) {
    const bool op = i.kind == InstrKind::op;
    if (i.workspace.buffer >= 0) {
      bool hit = false;
      for (const auto* list : {&i.in, &i.out})
        for (const ProgramOperand& o : *list) hit |= collide(i.workspace, o, false);
      if (hit) i.workspace.buffer = -1;
    }
    for (size_t k = 0; k < i.out.size(); ++k) {
      for (int attempt = 0;; ++attempt) {
        bool hit = false;
        for (const ProgramOperand& o : i.in) hit |= collide(i.out[k], o, op);
        for (size_t m = 0; m < k; ++m) hit |= collide(i.out[k], i.out[m], false);
        if (i.workspace.buffer >= 0) hit |= collide(i.out[k], i.workspace, false);
        if (!hit) break;
        if (attempt > 100) {  // nowhere left for a second output
          i.out.erase(i.out.begin() + k--);
          break;
        }
        const bool accumulate = i.out[k].accumulate;
        i.out[k] = operand(case_.set.buffers[i.out[k].buffer].tier, i.out[k].dims.count());
        i.out[k].accumulate = accumulate;
      }
    }
  }

  static void declare(Instr& i) {
    auto access = [&](const ProgramOperand& o, bool write) {
      i.access.push_back({o.buffer, o.version, o.offset, o.bytes(), write});
    };
    for (const auto& o : i.in) access(o, false);
    for (const auto& o : i.out) {
      if (i.accumulate && o.accumulate) access(o, false);
      access(o, true);
    }
    if (i.workspace.buffer >= 0) access(i.workspace, true);
  }

  std::mt19937_64 random_;
  Case case_;
  std::vector<BufferId> visible_;  // to the program being made
};

// Waits that certainly suffice: for each instruction, every instruction of another lane that it
// ever conflicts with; then takes away, one by one, what the oracle does not miss.
inline bool ordered(const ProgramSet& set, const ArenaLayout& layout) {
  oracle::Judge judge(set, layout, {});
  for (const Program& p : set.programs)
    for (const Program& q : set.programs)
      if (!judge.order(p, q).empty()) return false;
  return true;
}

inline void wait_for_everything(ProgramSet& set) {
  for (Program& p : set.programs)
    for (size_t s = 0; s < p.segments.size(); ++s)
      for (InstrId id = p.segments[s].begin; id < p.segments[s].end; ++id) {
        Instr& i = p.instrs[id];
        i.entry_waits = ((1u << kLaneCount) - 1) & ~(1u << static_cast<int>(i.lane));
        const InstrId end = p.segments[s].trip > 1 ? p.segments[s].end : id;
        for (InstrId on = 0; on < end; ++on)
          if (p.instrs[on].lane != i.lane) i.waits.push_back({on});
      }
}

// Removes waits in an order drawn from `generator` until each one left is needed.
inline void thin_out(ProgramSet& set, const ArenaLayout& layout, Generator& generator) {
  for (Program& p : set.programs)
    for (Instr& i : p.instrs) {
      for (int l = 0; l < kLaneCount; ++l) {
        const uint8_t kept = i.entry_waits;
        i.entry_waits &= ~(1u << l);
        if (kept != i.entry_waits && !ordered(set, layout)) i.entry_waits = kept;
      }
      for (int left = static_cast<int>(i.waits.size()); left > 0; --left) {
        const int k = generator.pick(0, left - 1);
        const Wait wait = i.waits[k];
        i.waits.erase(i.waits.begin() + k);
        if (!ordered(set, layout)) i.waits.push_back(wait);
      }
    }
}

}  // namespace spillway::fuzz
