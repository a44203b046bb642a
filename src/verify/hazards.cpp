// Races, reads of bytes that nothing wrote, reads of bytes that another buffer has taken over.
//
// A program is walked in issue order with a vector clock for each lane, over cells: the pieces
// between neighbouring ends of the byte ranges that any instruction touches. A cell keeps its last
// writer and, for each lane, the last reader since; if any conflicting pair is unordered, the first
// such pair in issue order involves one of these.
//
// How many iterations of a segment are walked. Let L be the least common multiple of the periods of
// the segment's versions (of buffers that are written at all). Between two iterations of one
// segment, happens-before depends on their distance alone and holds at a distance if it holds at a
// smaller one, so a pair of instructions that conflicts at all does so first within 2 L iterations.
// The owner of each byte after an iteration repeats with period L from the second round on, so 2 L
// iterations show every read too. A pair with the segment in between, or with one end in it,
// depends on the last L iterations, the first L, and on which lanes can be reached from which
// across the segment: at most three changes of lane, each within two iterations. So trips beyond
// max(2 L, 6) are cut by a multiple of L, which also leaves the versions at the seam to the next
// segment what they are.
//
// A pair in different runs is worst when the two follow each other directly: a run in between only
// adds order. Of a finished run, each access is known by the lanes whose end implies it; of the
// next, each first access by the lanes whose earlier programs it has waited for. They are ordered
// if these two sets meet.
#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"
#include "verify/passes.h"

namespace spillway::verify_detail {
namespace {

struct Clock {
  std::array<uint32_t, kLaneCount> at{};  // instructions of each lane known to be finished
  uint8_t entry = 0;                      // lanes whose earlier programs are known to be finished
  void join(const Clock& other) {
    for (int l = 0; l < kLaneCount; ++l) at[l] = std::max(at[l], other.at[l]);
    entry |= other.entry;
  }
};

// Cells [begin, end) of a byte range.
struct Span {
  int32_t begin = 0, end = 0;
};

struct Touch {
  int32_t first_span;  // of version 0; the others follow
  int32_t base, step, versions;
  BufferId buffer;
  bool read, write;
};

struct Cell {
  uint32_t write_at = 0;  // 0: not written in this run
  std::array<uint32_t, kLaneCount> read_at{};
  int32_t owner = 0;  // buffer and version that wrote it; 0: nobody
  InstrId writer = -1;
  std::array<InstrId, kLaneCount> reader{};
  Lane write_lane = Lane::compute;
};

// The accesses of a run to a cell that nothing of this run comes before.
struct First {
  InstrId writer = -1;
  std::array<InstrId, kLaneCount> reader{-1, -1, -1, -1, -1, -1};
  uint8_t writer_entry = 0;
  std::array<uint8_t, kLaneCount> reader_entry{};
};

struct Run {
  std::vector<Cell> cells;
  std::vector<First> first;
  std::array<Clock, kLaneCount> end;
  // Lanes whose end implies that the access at `clock` of `lane` is finished.
  uint8_t implied_by(Lane lane, uint32_t clock) const {
    uint8_t mask = 0;
    for (int l = 0; l < kLaneCount; ++l)
      if (end[l].at[static_cast<int>(lane)] >= clock) mask |= 1u << l;
    return mask;
  }
};

class Hazards {
 public:
  Hazards(const ProgramSet& set, const ArenaLayout& layout, Report& report)
      : set_(set), layout_(layout), report_(report) {}

  void check() {
    index_ranges();
    runs_.resize(set_.programs.size());
    for (size_t p = 0; p < set_.programs.size() && !report_.full(); ++p) walk(p);
    for (size_t p = 0; p < runs_.size(); ++p)
      for (size_t q = 0; q < runs_.size() && !report_.full(); ++q) follow(p, q);
  }

 private:
  struct Range {
    BufferId buffer;
    int64_t offset, bytes;
    friend auto operator<=>(const Range&, const Range&) = default;
  };

  int64_t address(BufferId buffer, int32_t version, int64_t offset) const {
    return layout_.offset[buffer] + version * layout_.version_stride[buffer] + offset;
  }

  // Touches of every instruction, and the cells of every range they name.
  void index_ranges() {
    std::vector<Range> ranges;
    std::vector<Access> access;
    for (const Program& program : set_.programs)
      for (const Instr& instr : program.instrs) {
        access.clear();
        required_access(instr, access);
        for (const Access& a : access) ranges.push_back({a.buffer, a.offset, a.bytes});
      }
    std::sort(ranges.begin(), ranges.end());
    ranges.erase(std::unique(ranges.begin(), ranges.end()), ranges.end());

    std::vector<int64_t> ends[kTierCount];
    for (const Range& r : ranges) {
      const Buffer& b = set_.buffers[r.buffer];
      for (int32_t v = 0; v < b.versions; ++v) {
        const int64_t at = address(r.buffer, v, r.offset);
        ends[static_cast<int>(b.tier)].insert(ends[static_cast<int>(b.tier)].end(),
                                              {at, at + r.bytes});
      }
    }
    int32_t cells[kTierCount + 1] = {0};
    for (int t = 0; t < kTierCount; ++t) {
      std::sort(ends[t].begin(), ends[t].end());
      ends[t].erase(std::unique(ends[t].begin(), ends[t].end()), ends[t].end());
      cells[t + 1] = cells[t] + static_cast<int32_t>(ends[t].size());
      cell_begin_.insert(cell_begin_.end(), ends[t].begin(), ends[t].end());
    }
    std::vector<int32_t> first_span(ranges.size());
    for (size_t r = 0; r < ranges.size(); ++r) {
      first_span[r] = static_cast<int32_t>(spans_.size());
      const Buffer& b = set_.buffers[ranges[r].buffer];
      const int tier = static_cast<int>(b.tier);
      auto cell_of = [&](int64_t at) {
        return cells[tier] +
               static_cast<int32_t>(std::lower_bound(ends[tier].begin(), ends[tier].end(), at) -
                                    ends[tier].begin());
      };
      for (int32_t v = 0; v < b.versions; ++v) {
        const int64_t at = address(ranges[r].buffer, v, ranges[r].offset);
        spans_.push_back({cell_of(at), cell_of(at + ranges[r].bytes)});
      }
    }
    owner_base_.resize(set_.buffers.size());
    constant_.resize(set_.buffers.size());
    int32_t owner = 1;
    for (size_t b = 0; b < set_.buffers.size(); ++b) {
      constant_[b] = set_.buffers[b].pinned_region || set_.buffers[b].scope == Scope::run;
      owner_base_[b] = owner;
      owner += set_.buffers[b].versions;
    }

    touches_.resize(set_.programs.size());
    touch_begin_.resize(set_.programs.size());
    for (size_t p = 0; p < set_.programs.size(); ++p)
      for (const Instr& instr : set_.programs[p].instrs) {
        touch_begin_[p].push_back(static_cast<int32_t>(touches_[p].size()));
        access.clear();
        required_access(instr, access);
        for (const Access& a : access) {
          if (a.write) constant_[a.buffer] = false;
          const auto at =
              std::lower_bound(ranges.begin(), ranges.end(), Range{a.buffer, a.offset, a.bytes});
          const int32_t versions = set_.buffers[a.buffer].versions;
          add_touch(p,
                    {first_span[at - ranges.begin()], floor_mod(a.version.base, versions),
                     floor_mod(a.version.step, versions), versions, a.buffer, !a.write, a.write});
        }
      }
    for (size_t p = 0; p < set_.programs.size(); ++p)
      touch_begin_[p].push_back(static_cast<int32_t>(touches_[p].size()));
  }

  // Adds a touch of the latest instruction, or widens the one of the same range.
  void add_touch(size_t p, const Touch& touch) {
    for (size_t k = touch_begin_[p].back(); k < touches_[p].size(); ++k) {
      Touch& t = touches_[p][k];
      if (t.first_span != touch.first_span || t.base != touch.base || t.step != touch.step)
        continue;
      t.read |= touch.read;
      t.write |= touch.write;
      return;
    }
    touches_[p].push_back(touch);
  }

  int64_t iterations(size_t p, const Segment& segment) const {
    int64_t cycle = 1;
    for (int32_t k = touch_begin_[p][segment.begin]; k < touch_begin_[p][segment.end]; ++k) {
      const Touch& t = touches_[p][k];
      if (t.versions > 1 && !constant_[t.buffer])
        cycle = std::lcm(cycle, period({t.base, t.step}, t.versions));
      if (cycle >= segment.trip) return segment.trip;
    }
    const int64_t enough = std::max<int64_t>(2 * cycle, 6);
    return segment.trip <= enough ? segment.trip : enough + (segment.trip - enough) % cycle;
  }

  void walk(size_t p) {
    program_ = &set_.programs[p];
    run_ = &runs_[p];
    run_->cells.assign(cell_begin_.size(), Cell{});
    run_->first.assign(cell_begin_.size(), First{});
    run_->end = {};
    last_.assign(program_->instrs.size(), Clock{});
    for (const Segment& segment : program_->segments) {
      const int64_t trip = iterations(p, segment);
      for (int64_t i = 0; i < trip; ++i)
        for (InstrId id = segment.begin; id < segment.end; ++id) {
          if (report_.full()) return;
          issue(p, id, i);
        }
    }
  }

  void issue(size_t p, InstrId id, int64_t iteration) {
    const Instr& instr = program_->instrs[id];
    const int lane = static_cast<int>(instr.lane);
    Clock now = run_->end[lane];
    for (const Wait& w : instr.waits) now.join(last_[w.on]);
    now.entry |= instr.entry_waits | (1u << lane);
    ++now.at[lane];
    const Touch* begin = touches_[p].data() + touch_begin_[p][id];
    const Touch* end = touches_[p].data() + touch_begin_[p][id + 1];
    for (const Touch* t = begin; t != end; ++t)
      if (t->read) read(id, lane, now, *t, iteration);
    for (const Touch* t = begin; t != end; ++t)
      if (t->write) write(id, instr.lane, now, *t, iteration);
    run_->end[lane] = now;
    last_[id] = now;
  }

  static int32_t version_of(const Touch& t, int64_t iteration) {
    return t.versions == 1 ? 0 : static_cast<int32_t>((t.base + t.step * iteration) % t.versions);
  }

  void read(InstrId id, int lane, const Clock& now, const Touch& t, int64_t iteration) {
    const int32_t version = version_of(t, iteration);
    const int32_t owner = owner_base_[t.buffer] + version;
    const Span span = spans_[t.first_span + version];
    for (int32_t c = span.begin; c < span.end; ++c) {
      Cell& cell = run_->cells[c];
      if (cell.owner != owner) [[unlikely]]
        not_own(id, t, c, cell);
      if (cell.write_at > now.at[static_cast<int>(cell.write_lane)]) [[unlikely]]
        race("a read may overtake the write before it", id, cell.writer, t.buffer, c);
      cell.read_at[lane] = now.at[lane];
      cell.reader[lane] = id;
      if (cell.write_at == 0) {
        First& first = run_->first[c];
        if (first.reader[lane] < 0) {
          first.reader[lane] = id;
          first.reader_entry[lane] = now.entry;
        }
      }
    }
  }

  void write(InstrId id, Lane lane, const Clock& now, const Touch& t, int64_t iteration) {
    const int32_t version = version_of(t, iteration);
    const int32_t owner = owner_base_[t.buffer] + version;
    const Span span = spans_[t.first_span + version];
    for (int32_t c = span.begin; c < span.end; ++c) {
      Cell& cell = run_->cells[c];
      if (cell.write_at > now.at[static_cast<int>(cell.write_lane)]) [[unlikely]]
        race("a write may overtake the write before it", id, cell.writer, t.buffer, c);
      for (int l = 0; l < kLaneCount; ++l) {
        if (cell.read_at[l] > now.at[l]) [[unlikely]]
          race("a write may overtake a read before it", id, cell.reader[l], t.buffer, c);
        cell.read_at[l] = 0;
      }
      if (cell.write_at == 0) {
        run_->first[c].writer = id;
        run_->first[c].writer_entry = now.entry;
      }
      cell.write_at = now.at[static_cast<int>(lane)];
      cell.write_lane = lane;
      cell.writer = id;
      cell.owner = owner;
    }
  }

  void not_own(InstrId id, const Touch& t, int32_t c, const Cell& cell) {
    const Instr& instr = program_->instrs[id];
    const Buffer& buffer = set_.buffers[t.buffer];
    if (cell.owner == 0) {
      if (buffer.scope != Scope::run)
        report_.add({"reads bytes that nothing has written in this run of the program",
                     program_->name, instr.name, "", buffer.name, cell_begin_[c],
                     cell_begin_[c + 1]});
      return;
    }
    report_.add({"reads bytes that were written last through another buffer or version",
                 program_->name, instr.name, program_->instrs[cell.writer].name, buffer.name,
                 cell_begin_[c], cell_begin_[c + 1]});
  }

  void race(const char* what, InstrId id, InstrId other, BufferId buffer, int32_t c) {
    report_.add({what, program_->name, program_->instrs[id].name, program_->instrs[other].name,
                 set_.buffers[buffer].name, cell_begin_[c], cell_begin_[c + 1]});
  }

  // Conflicts between a run of program p and a run of program q after it.
  void follow(size_t p, size_t q) {
    const Run &before = runs_[p], &after = runs_[q];
    if (before.cells.empty() || after.cells.empty()) return;
    for (size_t c = 0; c < before.cells.size(); ++c) {
      const Cell& cell = before.cells[c];
      const First& first = after.first[c];
      if (cell.write_at != 0) {
        const uint8_t done = before.implied_by(cell.write_lane, cell.write_at);
        for (int l = 0; l < kLaneCount; ++l)
          if (first.reader[l] >= 0 && !(done & first.reader_entry[l]))
            seam("a read may overtake a write of the program before", p, q, cell.writer,
                 first.reader[l], c);
        if (first.writer >= 0 && !(done & first.writer_entry))
          seam("a write may overtake a write of the program before", p, q, cell.writer,
               first.writer, c);
      }
      if (first.writer < 0) continue;
      for (int l = 0; l < kLaneCount; ++l)
        if (cell.read_at[l] != 0 &&
            !(before.implied_by(static_cast<Lane>(l), cell.read_at[l]) & first.writer_entry))
          seam("a write may overtake a read of the program before", p, q, cell.reader[l],
               first.writer, c);
    }
  }

  void seam(const char* what, size_t p, size_t q, InstrId earlier, InstrId later, size_t c) {
    const Program &before = set_.programs[p], &after = set_.programs[q];
    report_.add({fmt::format("{} (\"{}\")", what, before.name), after.name,
                 after.instrs[later].name, before.instrs[earlier].name, "", cell_begin_[c],
                 cell_begin_[c + 1]});
  }

  const ProgramSet& set_;
  const ArenaLayout& layout_;
  Report& report_;

  std::vector<int64_t> cell_begin_;  // a cell ends where the next of its tier begins
  std::vector<Span> spans_;
  std::vector<int32_t> owner_base_;  // by buffer: owner of version 0
  // By buffer: nothing writes its bytes, so which version is read cannot matter.
  std::vector<bool> constant_;
  std::vector<std::vector<Touch>> touches_;        // by program
  std::vector<std::vector<int32_t>> touch_begin_;  // by program and instruction

  std::vector<Run> runs_;  // by program
  const Program* program_ = nullptr;
  Run* run_ = nullptr;
  std::vector<Clock> last_;  // by instruction: clock of its latest instance; all 0: none yet
};

}  // namespace

void check_hazards(const ProgramSet& set, const ArenaLayout& layout, Report& report) {
  Hazards(set, layout, report).check();
}

}  // namespace spillway::verify_detail
