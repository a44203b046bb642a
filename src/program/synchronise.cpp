#include <algorithm>
#include <array>
#include <map>
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

// An atom of memory: no access begins or ends inside it.
struct Cell {
  LaneArray write{}, read{};                    // ticket of the last on each lane; 0: none
  uint8_t written_before = 0, read_before = 0;  // lanes that touch it in any program of the set
};

struct ByteRange {
  int32_t tier = 0;
  int64_t begin = 0, end = 0;
  bool write = false;
};

int64_t version_of(const Affine& a, int64_t iteration, int32_t versions) {
  return (a.base + a.step * iteration) % versions;
}

// Iterations to look at. With every version back where it was after `cycle` iterations, a pair of
// accesses conflicts first within 2 · cycle of them, and what the segment passes on across lanes
// settles within 6. Longer trips are cut by whole cycles, so that the seam to the next segment
// finds the versions that it will find.
int64_t unrolled(const Segment& segment, int64_t cycle) {
  const int64_t enough = std::max<int64_t>(2 * cycle, 6);
  return segment.trip <= enough ? segment.trip : enough + (segment.trip - enough) % cycle;
}

class Synchroniser {
 public:
  Synchroniser(ProgramSet& set, const ArenaLayout& layout) : set_(set), layout_(layout) {
    find_written();
    cut_cells();
    mark_earlier_programs();
  }

  void run() {
    for (Program& program : set_.programs) synchronise(program);
  }

 private:
  ByteRange range(const Access& a, int64_t iteration) const {
    const Buffer& b = set_.buffers[a.buffer];
    const int64_t begin =
        layout_.offset[a.buffer] + a.offset +
        version_of(a.version, iteration, b.versions) * layout_.version_stride[a.buffer];
    return {static_cast<int32_t>(b.tier), begin, begin + a.bytes, a.write};
  }

  // Buffers whose bytes nothing writes cannot be in conflict, whichever version is read.
  void find_written() {
    written_.assign(set_.buffers.size(), false);
    for (size_t b = 0; b < set_.buffers.size(); ++b) written_[b] = !set_.buffers[b].pinned_region;
    for (const Program& program : set_.programs)
      for (const Instr& instr : program.instrs)
        for (const Access& a : instr.access)
          if (a.write) written_[a.buffer] = true;
  }

  int64_t cycle_of(const Program& program, const Segment& s) const {
    int64_t cycle = 1;
    for (InstrId i = s.begin; i < s.end && cycle < s.trip; ++i)
      for (const Access& a : program.instrs[i].access) {
        const int32_t versions = set_.buffers[a.buffer].versions;
        if (versions > 1 && written_[a.buffer])
          cycle = std::lcm(cycle, versions / std::gcd(a.version.step, versions));
      }
    return cycle;
  }

  template <class F>
  void each_instance(const Program& program, F&& visit) const {
    for (const Segment& s : program.segments) {
      const int64_t trip = unrolled(s, cycle_of(program, s));
      for (int64_t iteration = 0; iteration < trip; ++iteration)
        for (InstrId i = s.begin; i < s.end; ++i) visit(i, iteration);
    }
  }

  void cut_cells() {
    for (const Program& program : set_.programs)
      each_instance(program, [&](InstrId i, int64_t iteration) {
        for (const Access& a : program.instrs[i].access) {
          const ByteRange r = range(a, iteration);
          cuts_[r.tier].push_back(r.begin);
          cuts_[r.tier].push_back(r.end);
        }
      });
    for (int t = 0; t < kTierCount; ++t) {
      std::sort(cuts_[t].begin(), cuts_[t].end());
      cuts_[t].erase(std::unique(cuts_[t].begin(), cuts_[t].end()), cuts_[t].end());
      fresh_[t].assign(cuts_[t].size() + 1, {});
    }
  }

  template <class F>
  void each_cell(std::vector<Cell> (&cells)[kTierCount], const ByteRange& r, F&& visit) const {
    const auto& cuts = cuts_[r.tier];
    for (size_t c = std::lower_bound(cuts.begin(), cuts.end(), r.begin) - cuts.begin();
         c < cuts.size() && cuts[c] < r.end; ++c)
      visit(cells[r.tier][c]);
  }

  void mark_earlier_programs() {
    for (const Program& program : set_.programs)
      each_instance(program, [&](InstrId i, int64_t iteration) {
        const uint8_t bit = 1u << static_cast<int>(program.instrs[i].lane);
        for (const Access& a : program.instrs[i].access)
          each_cell(fresh_, range(a, iteration),
                    [&](Cell& cell) { (a.write ? cell.written_before : cell.read_before) |= bit; });
      });
  }

  void synchronise(Program& program) {
    for (int t = 0; t < kTierCount; ++t) cells_[t] = fresh_[t];
    Clock known[kLaneCount];
    std::vector<Clock> done[kLaneCount];      // by ticket - 1
    std::vector<InstrId> issued[kLaneCount];  // by ticket - 1
    std::vector<uint32_t> latest(program.instrs.size(), 0);
    for (int l = 0; l < kLaneCount; ++l) known[l].entry = 1u << l;

    each_instance(program, [&](InstrId id, int64_t iteration) {
      Instr& instr = program.instrs[id];
      const int lane = static_cast<int>(instr.lane);
      Clock& clock = known[lane];
      for (const Wait& w : instr.waits)
        if (latest[w.on] > 0)
          clock.join(done[static_cast<int>(program.instrs[w.on].lane)][latest[w.on] - 1]);
      clock.entry |= instr.entry_waits;

      LaneArray need{};
      uint8_t entry = 0;
      for (const Access& a : instr.access)
        each_cell(cells_, range(a, iteration), [&](Cell& cell) {
          for (int l = 0; l < kLaneCount; ++l) {
            if (l == lane) continue;
            uint32_t t = cell.write[l];
            if (a.write) t = std::max(t, cell.read[l]);
            if (t > clock.ticket[l]) need[l] = std::max(need[l], t);
          }
          entry |= cell.written_before | (a.write ? cell.read_before : 0);
        });

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
      for (const Access& a : instr.access)
        each_cell(cells_, range(a, iteration),
                  [&](Cell& cell) { (a.write ? cell.write : cell.read)[lane] = ticket; });
    });
  }

  ProgramSet& set_;
  const ArenaLayout& layout_;
  std::vector<bool> written_;
  std::vector<int64_t> cuts_[kTierCount];
  std::vector<Cell> fresh_[kTierCount], cells_[kTierCount];
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
