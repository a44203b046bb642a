// The verifier's judge: the same questions answered by brute force, for small programs only. Every
// iteration is unrolled, every pair of programs is run one after the other, every edge of
// happens-before is drawn and closed transitively, every byte is looked at. Nothing is shared with
// src/verify but the data types. The answer is "" or the first thing that is wrong.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "program/program.h"

namespace spillway::oracle {

struct Capacity {
  int64_t bytes[kTierCount] = {std::numeric_limits<int64_t>::max(),
                               std::numeric_limits<int64_t>::max()};
};

// Bytes [begin, end) of a tier, through `slot` (buffer and version).
struct Bytes {
  int tier;
  int64_t begin, end;
  int slot;
};

struct Event {  // one instruction of one iteration of one run
  const Program* program;
  int run;
  InstrId id;
  int64_t iteration;
  std::vector<Bytes> reads, writes;
  const Instr& instr() const { return program->instrs[id]; }
};

inline int version_at(const Buffer& b, const Affine& a, int64_t iteration) {
  int64_t v = a.base + iteration * a.step;
  while (v < 0) v += b.versions;
  return static_cast<int>(v % b.versions);
}

class Judge {
 public:
  Judge(const ProgramSet& set, const ArenaLayout& layout, const Capacity& capacity)
      : set_(set), layout_(layout), capacity_(capacity) {
    for (const Buffer& b : set.buffers) {
      first_slot_.push_back(slots_);
      slots_ += b.versions;
      for (int v = 0; v < b.versions; ++v) {
        first_byte_.push_back(marks_.size());
        marks_.resize(marks_.size() + b.bytes);
      }
    }
  }

  std::string verdict() {
    std::string bad = arenas();
    for (const Program& p : set_.programs)
      if (bad.empty()) bad = single(p);
    for (const Program& p : set_.programs)
      for (const Program& q : set_.programs)
        if (bad.empty()) bad = order(p, q);
    return bad;
  }

  // Reads of bytes that this run has not written through the same slot: (instruction, operand).
  std::vector<std::pair<InstrId, int>> wrong_reads(const Program& p) {
    std::vector<std::pair<InstrId, int>> wrong;
    std::vector<int> owner[kTierCount];
    for (int t = 0; t < kTierCount; ++t) owner[t].assign(layout_.tier_bytes[t], -1);
    for (const Event& e : unroll(p, 0)) {
      int k = 0;
      for (const Bytes& r : e.reads) {
        bool ok = true;
        for (int64_t b = r.begin; b < r.end; ++b) {
          const int o = owner[r.tier][b];
          ok = ok && (o == r.slot || (o == -1 && scope_of_slot(r.slot) == Scope::run));
        }
        if (!ok) wrong.push_back({e.id, k});
        ++k;
      }
      for (const Bytes& w : e.writes)
        std::fill(owner[w.tier].begin() + w.begin, owner[w.tier].begin() + w.end, w.slot);
    }
    return wrong;
  }

  // Two conflicting accesses of p followed by q that nothing orders.
  std::string order(const Program& p, const Program& q) {
    std::vector<Event> events = unroll(p, 0);
    for (Event& e : unroll(q, 1)) events.push_back(e);
    const size_t n = events.size(), words = (n + 63) / 64;
    std::vector<std::vector<uint64_t>> before(n, std::vector<uint64_t>(words, 0));
    for (size_t j = 0; j < n; ++j) {
      const Instr& instr = events[j].instr();
      auto edge = [&](size_t i) {
        before[j][i / 64] |= uint64_t{1} << (i % 64);
        for (size_t w = 0; w < words; ++w) before[j][w] |= before[i][w];
      };
      std::vector<bool> waited(instr.waits.size(), false);
      for (size_t i = j; i-- > 0;) {
        const Event& e = events[i];
        if (e.instr().lane == instr.lane) edge(i);
        if (e.run < events[j].run && (instr.entry_waits >> static_cast<int>(e.instr().lane) & 1))
          edge(i);
        for (size_t w = 0; w < instr.waits.size(); ++w)
          if (!waited[w] && e.run == events[j].run && e.id == instr.waits[w].on)
            waited[w] = true, edge(i);
      }
    }
    for (size_t j = 0; j < n; ++j)
      for (size_t i = 0; i < j; ++i) {
        if (before[j][i / 64] >> (i % 64) & 1) continue;
        if (meet(events[i].writes, events[j].writes) || meet(events[i].writes, events[j].reads) ||
            meet(events[i].reads, events[j].writes))
          return "unordered: " + events[i].instr().name + " and " + events[j].instr().name;
      }
    return "";
  }

 private:
  static bool meet(const std::vector<Bytes>& x, const std::vector<Bytes>& y) {
    for (const Bytes& a : x)
      for (const Bytes& b : y)
        if (a.tier == b.tier && std::max(a.begin, b.begin) < std::min(a.end, b.end)) return true;
    return false;
  }

  Scope scope_of_slot(int slot) const {
    size_t b = set_.buffers.size() - 1;
    while (first_slot_[b] > slot) --b;
    return set_.buffers[b].scope;
  }

  Bytes locate(BufferId buffer, const Affine& a, int64_t offset, int64_t bytes, int64_t i) const {
    const Buffer& b = set_.buffers[buffer];
    const int v = version_at(b, a, i);
    const int64_t at = layout_.offset[buffer] + v * layout_.version_stride[buffer] + offset;
    return {static_cast<int>(b.tier), at, at + bytes, first_slot_[buffer] + v};
  }
  Bytes locate(const ProgramOperand& o, int64_t i) const {
    return locate(o.buffer, o.version, o.offset, o.bytes(), i);
  }

  // Reads of `in` come first and in order.
  std::vector<Event> unroll(const Program& p, int run) const {
    std::vector<Event> events;
    for (const Segment& s : p.segments)
      for (int64_t i = 0; i < s.trip; ++i)
        for (InstrId id = s.begin; id < s.end; ++id) {
          Event e{&p, run, id, i, {}, {}};
          const Instr& instr = p.instrs[id];
          for (const ProgramOperand& o : instr.in) e.reads.push_back(locate(o, i));
          for (const ProgramOperand& o : instr.out) {
            if (instr.accumulate && o.accumulate) e.reads.push_back(locate(o, i));
            e.writes.push_back(locate(o, i));
          }
          if (instr.workspace.buffer >= 0) e.writes.push_back(locate(instr.workspace, i));
          events.push_back(std::move(e));
        }
    return events;
  }

  std::string arenas() const {
    for (int t = 0; t < kTierCount; ++t) {
      if (layout_.tier_bytes[t] > capacity_.bytes[t]) return "capacity";
      // Per byte: how many slots it belongs to, and whether one of them must have it alone.
      std::vector<int> users(layout_.tier_bytes[t], 0);
      std::vector<bool> alone(layout_.tier_bytes[t], false);
      for (size_t id = 0; id < set_.buffers.size(); ++id) {
        const Buffer& b = set_.buffers[id];
        if (static_cast<int>(b.tier) != t) continue;
        for (int v = 0; v < b.versions; ++v) {
          const int64_t at = layout_.offset[id] + v * layout_.version_stride[id];
          if (at % 256 != 0) return "alignment of " + b.name;
          if (at < 0 || at + b.bytes > layout_.tier_bytes[t]) return b.name + " outside the arena";
          if (v > 0 && layout_.version_stride[id] < b.bytes) return "versions of " + b.name;
          for (int64_t x = at; x < at + b.bytes; ++x) {
            ++users[x];
            if (b.pinned_region || b.scope == Scope::run) alone[x] = true;
          }
        }
      }
      for (size_t x = 0; x < users.size(); ++x)
        if (alone[x] && users[x] > 1) return "bytes given away twice";
    }
    return "";
  }

  // One program by itself: each instruction's own rules, waits, numbers, and what is read.
  std::string single(const Program& p) {
    for (const Segment& s : p.segments)
      for (InstrId id = s.begin; id < s.end; ++id) {
        const Instr& instr = p.instrs[id];
        for (int64_t i = 0; i < s.trip; ++i) {
          const std::string bad = instance(instr, i);
          if (!bad.empty()) return instr.name + ": " + bad;
        }
        for (const Wait& w : instr.waits) {
          if (p.instrs[w.on].lane == instr.lane) return instr.name + " waits for its own lane";
          if (!ever_resolved(p, id, w.on)) return instr.name + " waits for nothing";
        }
      }
    int last = -1;
    for (const Segment& s : p.segments)
      for (InstrId id = s.begin; id < s.end; ++id)
        if (p.instrs[id].kind == InstrKind::exchange) {
          if (p.instrs[id].sequence <= last) return "exchange numbers";
          last = p.instrs[id].sequence;
        }
    const auto wrong = wrong_reads(p);
    return wrong.empty() ? "" : p.instrs[wrong[0].first].name + " reads what is not there";
  }

  static bool ever_resolved(const Program& p, InstrId id, InstrId on) {
    bool issued = false;
    for (const Segment& s : p.segments)
      for (int64_t i = 0; i < s.trip; ++i)
        for (InstrId k = s.begin; k < s.end; ++k) {
          if (k == id && issued) return true;
          if (k == on) issued = true;
        }
    return false;
  }

  std::string instance(const Instr& instr, int64_t i) {
    // By byte of every slot: 1 must read, 2 must write, 4 says it reads, 8 says it writes.
    std::vector<std::pair<uint8_t*, uint8_t*>> marked;
    std::string bad;
    auto mark = [&](BufferId buffer, const Affine& a, int64_t offset, int64_t bytes, int bit) {
      const Buffer& b = set_.buffers[buffer];
      if (offset < 0 || offset + bytes > b.bytes) {
        bad = "outside " + b.name;
        return;
      }
      uint8_t* at = &marks_[first_byte_[first_slot_[buffer] + version_at(b, a, i)] + offset];
      for (int64_t x = 0; x < bytes; ++x) at[x] |= bit;
      marked.emplace_back(at, at + bytes);
    };
    auto operand = [&](const ProgramOperand& o, int bit) {
      if (o.bytes() == 0) return;
      if (o.offset % size_of(o.dtype)) bad = "elements cut in pieces";
      mark(o.buffer, o.version, o.offset, o.bytes(), bit);
    };
    for (const auto& o : instr.in) operand(o, 1);
    for (const auto& o : instr.out) operand(o, instr.accumulate && o.accumulate ? 3 : 2);
    if (instr.workspace.buffer >= 0) operand(instr.workspace, 2);
    for (const Access& a : instr.access)
      mark(a.buffer, a.version, a.offset, a.bytes, a.write ? 8 : 4);
    for (const auto& [begin, end] : marked)
      for (const uint8_t* m = begin; m < end; ++m)
        if (bad.empty() && (*m & 3) != (*m >> 2)) bad = "declared accesses differ from operands";
    for (const auto& [begin, end] : marked) std::fill(begin, end, 0);
    if (!bad.empty()) return bad;

    std::vector<Bytes> in, out;
    for (const auto& o : instr.in) in.push_back(locate(o, i));
    for (const auto& o : instr.out) out.push_back(locate(o, i));
    const size_t outputs = out.size();
    if (instr.workspace.buffer >= 0) out.push_back(locate(instr.workspace, i));
    for (size_t x = 0; x < out.size(); ++x) {
      for (size_t y = 0; y < x; ++y)
        if (meet({out[x]}, {out[y]})) return "outputs overlap";
      for (const Bytes& r : in) {
        const bool in_place = instr.kind == InstrKind::op && x < outputs &&
                              r.begin == out[x].begin && r.end == out[x].end;
        if (meet({out[x]}, {r}) && !in_place) return "output over input";
      }
    }
    return kind(instr);
  }

  std::string kind(const Instr& instr) const {
    auto on = [&](const std::vector<ProgramOperand>& list, Tier tier) {
      return std::all_of(list.begin(), list.end(), [&](const ProgramOperand& o) {
        return set_.buffers[o.buffer].tier == tier;
      });
    };
    switch (instr.kind) {
      case InstrKind::op: {
        const bool by_host = instr.lane == Lane::cpu;
        const Tier tier = by_host ? Tier::host : Tier::device;
        return (by_host || instr.lane == Lane::compute) && on(instr.in, tier) &&
                       on(instr.out, tier) &&
                       (instr.workspace.buffer < 0 || on({instr.workspace}, tier))
                   ? ""
                   : "an op between the tiers";
      }
      case InstrKind::copy: {
        if (instr.in.size() != 1 || instr.out.size() != 1) return "copy of many";
        if (instr.in[0].bytes() != instr.out[0].bytes()) return "copy of unequal sizes";
        const bool in_host = instr.lane == Lane::cpu;
        const Tier from = in_host || instr.lane == Lane::h2d ? Tier::host : Tier::device;
        const Tier to = in_host || instr.lane == Lane::d2h ? Tier::host : Tier::device;
        return instr.lane != Lane::io && on(instr.in, from) && on(instr.out, to)
                   ? ""
                   : "copy between the wrong tiers";
      }
      case InstrKind::exchange: {
        if (instr.lane != Lane::comm) return "exchange on another lane";
        for (size_t k = 0; k < instr.out.size(); ++k)
          if (instr.out[k].bytes() > 0 &&
              std::count_if(instr.transfers.begin(), instr.transfers.end(), [&](const auto& t) {
                return !t.send && t.operand == static_cast<int>(k);
              }) != 1)
            return "an output not received once";
        return "";
      }
      case InstrKind::save: {
        if (instr.lane != Lane::io || instr.in.size() != 1 || !instr.out.empty()) return "a save";
        const bool device = on(instr.in, Tier::device);
        return device == (instr.workspace.buffer >= 0) &&
                       (!device || on({instr.workspace}, Tier::host))
                   ? ""
                   : "a save with the wrong workspace";
      }
    }
    return "";
  }

  const ProgramSet& set_;
  const ArenaLayout& layout_;
  Capacity capacity_;
  std::vector<int> first_slot_;
  int slots_ = 0;
  std::vector<size_t> first_byte_;  // by slot, into marks_
  std::vector<uint8_t> marks_;
};

// Runs two ranks' exchanges as messages: both must stand at an exchange that says the same.
inline std::string run_ranks(const Program& a, const Program& b) {
  std::vector<const Instr*> queue[2];
  const Program* programs[2] = {&a, &b};
  for (int r = 0; r < 2; ++r)
    for (const Segment& s : programs[r]->segments)
      for (int i = 0; i < s.trip; ++i)
        for (InstrId id = s.begin; id < s.end; ++id)
          if (programs[r]->instrs[id].kind == InstrKind::exchange)
            queue[r].push_back(&programs[r]->instrs[id]);
  if (queue[0].size() != queue[1].size()) return "one rank is left waiting";
  for (size_t k = 0; k < queue[0].size(); ++k) {
    const Instr *x = queue[0][k], *y = queue[1][k];
    if (x->name != y->name || x->sequence != y->sequence) return "ranks meet in different places";
    std::vector<int64_t> sent[2], received[2];
    for (int r = 0; r < 2; ++r)
      for (const ProgramTransfer& t : queue[r][k]->transfers) {
        if (t.peer != 1 - r) return "message to nowhere";
        const Instr& instr = *queue[r][k];
        (t.send ? sent : received)[r].push_back((t.send ? instr.in : instr.out)[t.operand].bytes());
      }
    if (sent[0] != received[1] || sent[1] != received[0]) return "messages of unequal sizes";
  }
  return "";
}

}  // namespace spillway::oracle
