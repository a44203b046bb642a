#include <algorithm>
#include <array>
#include <numeric>

#include "base/hash.h"
#include "program/stages.h"

namespace spillway {
namespace {

using LaneArray = std::array<uint32_t, kLaneCount>;

// What a lane knows to have finished: tickets of this run of the program, and lanes whose earlier
// programs have ended.
struct Clock {
  LaneArray ticket{};
  uint8_t entry = 0;
  void join(const Clock& other) {
    for (int l = 0; l < kLaneCount; ++l) ticket[l] = std::max(ticket[l], other.ticket[l]);
    entry |= other.entry;
  }
};

// Tickets of the last accesses to an atom of memory on each lane; 0: none.
struct Cell {
  LaneArray write{}, read{};
};

// Lanes that touch some bytes in any program of the set.
struct Users {
  uint8_t write = 0, read = 0;
  // Whether two lanes may be in conflict there.
  bool contended() const {
    const uint8_t all = write | read;
    return write != 0 && (all & (all - 1)) != 0;
  }
};

// Bytes of a tier that some access is to.
struct Span {
  int32_t tier = 0;
  int64_t begin = 0, end = 0;
  Users users;
  int32_t first_cell = 0, last_cell = -1;  // contended ones at both ends
};

// What one instruction touches, after accesses that hazards need not tell apart are put together:
// positions_[first + iteration mod period] is its span.
struct Touch {
  int32_t first = 0, period = 1;
  bool write = false;
};

int64_t version_of(const Affine& a, int64_t iteration, int32_t versions) {
  return (a.base + a.step * iteration) % versions;
}

int32_t period_of(const Affine& a, int32_t versions) {
  return versions == 1 || a.step == 0 ? 1 : versions / std::gcd(a.step, versions);
}

// Iterations to look at. With every version back where it was after `cycle` iterations, a pair of
// accesses conflicts first within 2 · cycle of them, and what the segment passes on across lanes
// settles within 6. Longer trips are cut by whole cycles, so that the seam to the next segment
// finds the versions that it will find.
int64_t unrolled(const Segment& segment, int64_t cycle) {
  const int64_t enough = std::max<int64_t>(2 * cycle, 6);
  return segment.trip <= enough ? segment.trip : enough + (segment.trip - enough) % cycle;
}

bool same_place(const Access& a, const Access& b) {
  return a.buffer == b.buffer && a.version.base == b.version.base &&
         a.version.step == b.version.step;
}

// Accesses of one instruction, the fewest that mean the same to a hazard: neighbours are one range
// (the pieces of an exchange), and what is written need not be read as well (in place).
void merge_accesses(const std::vector<Access>& from, std::vector<Access>& to) {
  to.clear();
  for (const Access& a : from) {
    if (a.bytes == 0) continue;
    if (!to.empty()) {
      Access& last = to.back();
      if (same_place(last, a) && last.write == a.write && a.offset >= last.offset &&
          a.offset <= last.offset + last.bytes) {
        last.bytes = std::max(last.bytes, a.offset + a.bytes - last.offset);
        continue;
      }
    }
    to.push_back(a);
  }
  constexpr size_t kFew = 16;
  if (to.size() > kFew) return;
  std::erase_if(to, [&](const Access& read) {
    return !read.write && std::any_of(to.begin(), to.end(), [&](const Access& a) {
      return a.write && same_place(a, read) && a.offset <= read.offset &&
             a.offset + a.bytes >= read.offset + read.bytes;
    });
  });
}

class Synchroniser {
 public:
  Synchroniser(ProgramSet& set, const ArenaLayout& layout) : set_(set) {
    for (size_t b = 0; b < set.buffers.size(); ++b) {
      const Buffer& buffer = set.buffers[b];
      bytes_.push_back({layout.offset[b], layout.version_stride[b], buffer.versions,
                        static_cast<int32_t>(buffer.tier), !buffer.pinned_region});
    }
    find_written();
    for (const Program& program : set_.programs) find_touches(program);
    cut_cells();
  }

  void run() {
    for (size_t p = 0; p < set_.programs.size(); ++p) synchronise(set_.programs[p], traces_[p]);
  }

 private:
  struct Trace {
    std::vector<int64_t> trips;        // iterations to look at, by segment
    std::vector<Touch> touches;        // in order of instructions
    std::vector<int32_t> first_touch;  // by instruction, and one more
  };

  // Where a buffer stands.
  struct BufferBytes {
    int64_t offset, stride;
    int32_t versions, tier;
    bool written;  // by some instruction, or through another buffer in the same place
  };

  // Buffers whose bytes nothing writes cannot be in conflict, whichever version is read.
  void find_written() {
    for (const Program& program : set_.programs)
      for (const Instr& instr : program.instrs)
        for (const Access& a : instr.access)
          if (a.write) bytes_[a.buffer].written = true;
  }

  int64_t cycle_of(const Program& program, const Segment& s) const {
    int64_t cycle = 1;
    for (InstrId i = s.begin; i < s.end && cycle < s.trip; ++i)
      for (const Access& a : program.instrs[i].access) {
        if (a.version.step == 0) continue;
        const BufferBytes& b = bytes_[a.buffer];
        if (b.versions > 1 && b.written) cycle = std::lcm(cycle, period_of(a.version, b.versions));
      }
    return cycle;
  }

  void find_touches(const Program& program) {
    Trace& trace = traces_.emplace_back();
    trace.first_touch.assign(program.instrs.size() + 1, 0);
    std::vector<Access> merged;
    for (const Segment& s : program.segments) {
      const int64_t trip = unrolled(s, cycle_of(program, s));
      trace.trips.push_back(trip);
      for (InstrId i = s.begin; i < s.end; ++i) {
        trace.first_touch[i] = static_cast<int32_t>(trace.touches.size());
        merge_accesses(program.instrs[i].access, merged);
        for (const Access& a : merged) {
          const int32_t period = period_of(a.version, bytes_[a.buffer].versions);
          trace.touches.push_back({static_cast<int32_t>(positions_.size()), period, a.write});
          for (int64_t iteration = 0; iteration < std::min<int64_t>(period, trip); ++iteration)
            positions_.push_back(span_of(a, iteration, program.instrs[i].lane));
        }
        trace.first_touch[i + 1] = static_cast<int32_t>(trace.touches.size());
      }
    }
  }

  int32_t span_of(const Access& a, int64_t iteration, Lane lane) {
    const BufferBytes& b = bytes_[a.buffer];
    Span span;
    span.tier = b.tier;
    span.begin = b.offset + a.offset + version_of(a.version, iteration, b.versions) * b.stride;
    span.end = span.begin + a.bytes;
    const int32_t id = spans_.intern(span);
    (a.write ? spans_[id].users.write : spans_[id].users.read) |= 1u << static_cast<int>(lane);
    return id;
  }

  // Cells are what lies between two ends of spans, so that no access begins or ends inside one.
  void cut_cells() {
    std::vector<int64_t> cuts[kTierCount];
    for (const Span& s : spans_.all) {
      cuts[s.tier].push_back(s.begin);
      cuts[s.tier].push_back(s.end);
    }
    int32_t base[kTierCount], count = 0;
    for (int t = 0; t < kTierCount; ++t) {
      std::sort(cuts[t].begin(), cuts[t].end());
      cuts[t].erase(std::unique(cuts[t].begin(), cuts[t].end()), cuts[t].end());
      base[t] = count;
      count += static_cast<int32_t>(cuts[t].size());
    }
    users_.assign(count, {});
    for (Span& s : spans_.all) {
      const auto begin = cuts[s.tier].begin();
      const auto first = std::lower_bound(begin, cuts[s.tier].end(), s.begin);
      const auto end = std::lower_bound(first, cuts[s.tier].end(), s.end);
      s.first_cell = base[s.tier] + static_cast<int32_t>(first - begin);
      s.last_cell = base[s.tier] + static_cast<int32_t>(end - begin) - 1;
      for (int32_t c = s.first_cell; c <= s.last_cell; ++c) {
        users_[c].write |= s.users.write;
        users_[c].read |= s.users.read;
      }
    }
    // A lane is in order, so what one lane alone touches, or all only read, needs no look.
    for (Span& s : spans_.all) {
      while (s.first_cell <= s.last_cell && !users_[s.first_cell].contended()) ++s.first_cell;
      while (s.first_cell <= s.last_cell && !users_[s.last_cell].contended()) --s.last_cell;
    }
    for (Trace& trace : traces_) drop_quiet_touches(trace);
  }

  void drop_quiet_touches(Trace& trace) {
    int32_t kept = 0, begin = 0;
    for (size_t i = 0; i + 1 < trace.first_touch.size(); ++i) {
      const int32_t end = trace.first_touch[i + 1];
      for (int32_t k = begin; k < end; ++k) {
        const Touch touch = trace.touches[k];
        if (touch.period == 1 &&
            spans_[positions_[touch.first]].first_cell > spans_[positions_[touch.first]].last_cell)
          continue;
        trace.touches[kept++] = touch;
      }
      begin = end;
      trace.first_touch[i + 1] = kept;
    }
    trace.touches.resize(kept);
  }

  void synchronise(Program& program, const Trace& trace) {
    std::vector<Cell> cells(users_.size());
    Clock known[kLaneCount];
    std::vector<Clock> done[kLaneCount];      // by ticket - 1
    std::vector<InstrId> issued[kLaneCount];  // by ticket - 1
    std::vector<uint32_t> latest(program.instrs.size(), 0);
    for (int l = 0; l < kLaneCount; ++l) known[l].entry = 1u << l;

    const auto issue = [&](InstrId id, int64_t iteration) {
      Instr& instr = program.instrs[id];
      const int lane = static_cast<int>(instr.lane);
      Clock& clock = known[lane];
      for (const Wait& w : instr.waits)
        if (latest[w.on] > 0)
          clock.join(done[static_cast<int>(program.instrs[w.on].lane)][latest[w.on] - 1]);
      clock.entry |= instr.entry_waits;

      const auto each_cell = [&](auto&& visit) {
        for (int32_t k = trace.first_touch[id]; k < trace.first_touch[id + 1]; ++k) {
          const Touch& touch = trace.touches[k];
          const Span& span = spans_[positions_[touch.first + iteration % touch.period]];
          for (int32_t c = span.first_cell; c <= span.last_cell; ++c) visit(c, touch.write);
        }
      };
      LaneArray need{};
      uint8_t entry = 0;
      each_cell([&](int32_t c, bool write) {
        const Cell& cell = cells[c];
        for (int l = 0; l < kLaneCount; ++l) need[l] = std::max(need[l], cell.write[l]);
        if (write)
          for (int l = 0; l < kLaneCount; ++l) need[l] = std::max(need[l], cell.read[l]);
        entry |= users_[c].write | (write ? users_[c].read : 0);
      });
      need[lane] = 0;
      for (int l = 0; l < kLaneCount; ++l)
        if (need[l] <= clock.ticket[l]) need[l] = 0;

      // Only what no other needed event implies.
      for (int l = 0; l < kLaneCount; ++l) {
        if (need[l] == 0) continue;
        bool implied = false;
        for (int other = 0; other < kLaneCount; ++other)
          implied = implied || (other != l && need[other] > 0 &&
                                done[other][need[other] - 1].ticket[l] >= need[l]);
        if (!implied) instr.waits.push_back({issued[l][need[l] - 1]});
      }
      for (int l = 0; l < kLaneCount; ++l)
        if (need[l] > 0) clock.join(done[l][need[l] - 1]);
      instr.entry_waits |= entry & ~clock.entry;
      clock.entry |= entry;

      issued[lane].push_back(id);
      const uint32_t ticket = static_cast<uint32_t>(issued[lane].size());
      latest[id] = ticket;
      clock.ticket[lane] = ticket;
      done[lane].push_back(clock);
      each_cell(
          [&](int32_t c, bool write) { (write ? cells[c].write : cells[c].read)[lane] = ticket; });
    };
    for (size_t s = 0; s < program.segments.size(); ++s)
      for (int64_t iteration = 0; iteration < trace.trips[s]; ++iteration)
        for (InstrId i = program.segments[s].begin; i < program.segments[s].end; ++i)
          issue(i, iteration);
  }

  // Each span once.
  struct Spans {
    std::vector<Span> all;
    std::vector<int32_t> slots = std::vector<int32_t>(1024, -1);  // a power of two, half empty
    Span& operator[](int32_t id) { return all[id]; }

    static uint64_t hash(const Span& s) {
      const uint64_t h = (static_cast<uint64_t>(s.begin) * 2 + static_cast<uint64_t>(s.tier)) *
                             0x9e3779b97f4a7c15u ^
                         static_cast<uint64_t>(s.end) * 0xc2b2ae3d27d4eb4fu;
      return h ^ h >> 32;
    }
    int32_t& slot_of(const Span& s) {
      for (size_t at = hash(s);; ++at) {
        int32_t& slot = slots[at & (slots.size() - 1)];
        if (slot < 0 ||
            (all[slot].begin == s.begin && all[slot].end == s.end && all[slot].tier == s.tier))
          return slot;
      }
    }
    int32_t intern(const Span& s) {
      int32_t& slot = slot_of(s);
      if (slot >= 0) return slot;
      const int32_t id = slot = static_cast<int32_t>(all.size());
      all.push_back(s);
      if (all.size() * 2 > slots.size()) {
        slots.assign(slots.size() * 4, -1);
        for (size_t i = 0; i < all.size(); ++i) slot_of(all[i]) = static_cast<int32_t>(i);
      }
      return id;
    }
  };

  ProgramSet& set_;
  std::vector<BufferBytes> bytes_;  // by buffer
  Spans spans_;
  std::vector<int32_t> positions_;  // spans
  std::vector<Users> users_;        // by cell
  std::vector<Trace> traces_;       // by program
};

}  // namespace

void synchronise(ProgramSet& set, const ArenaLayout& layout) {
  for (Program& program : set.programs)
    for (Instr& instr : program.instrs) {
      instr.waits.clear();
      instr.entry_waits = 0;
    }
  Synchroniser(set, layout).run();
}

uint64_t program_hash(const ProgramSet& set, const ArenaLayout& layout) {
  Hasher h;
  for (const Buffer& b : set.buffers) {
    h.text(b.name);
    h.value(b.tier);
    h.value(b.bytes);
    h.value(b.versions);
  }
  for (const Program& p : set.programs) {
    h.text(p.name);
    for (const Segment& s : p.segments) {
      h.value(s.trip);
      h.value(s.begin);
      h.value(s.end);
    }
    for (const Instr& i : p.instrs) {
      h.value(i.kind);
      h.value(i.lane);
      h.value(i.op);
      for (const Access& a : i.access) {
        h.value(a.buffer);
        h.value(a.version.base);
        h.value(a.version.step);
        h.value(a.offset);
        h.value(a.bytes);
        h.value(a.write);
      }
      for (const Wait& w : i.waits) h.value(w.on);
      h.value(i.entry_waits);
    }
  }
  for (const int64_t t : layout.tier_bytes) h.value(t);
  for (const int64_t o : layout.offset) h.value(o);
  return h.digest();
}

}  // namespace spillway
