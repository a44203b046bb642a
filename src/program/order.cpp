// List scheduling of copies between the tiers. Lowering issues every copy as soon as its place in
// the program allows; on an in-order lane that makes what is needed next wait for what is needed
// much later. Here the step runs once in virtual time, and a lane that is free takes, of the copies
// that could begin, the one whose result is needed first. Long copies are cut, since what is urgent
// waits for the one that is under way, and a slot's next fetch for all of its last write-back.
#include <algorithm>
#include <array>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

#include "program/stages.h"

namespace spillway {
namespace {

constexpr int64_t kPieceElements = 1024;  // pieces are whole multiples, so that all are aligned
constexpr int64_t kMostPieces = 8;        // of one copy: every one is an instruction to plan with

bool is_copy_lane(Lane lane) { return lane == Lane::h2d || lane == Lane::d2h; }

// Whether the program may issue it elsewhere: what shares its bytes with others is packed by the
// order of issue, which must not change.
bool movable(const Instr& instr, const std::vector<Buffer>& buffers) {
  return instr.kind == InstrKind::copy && is_copy_lane(instr.lane) &&
         std::all_of(instr.access.begin(), instr.access.end(),
                     [&](const Access& a) { return buffers[a.buffer].pinned_region; });
}

// One iteration of a segment.
class SegmentOrder {
 public:
  SegmentOrder(const ProgramSet& set, const Program& program, const Segment& segment,
               const InstrSeconds& seconds)
      : set_(set), program_(program), begin_(segment.begin), count_(segment.end - segment.begin) {
    movable_.resize(count_);
    seconds_.resize(count_);
    for (int32_t i = 0; i < count_; ++i) {
      movable_[i] = movable(instr(i), set.buffers);
      seconds_[i] = seconds(program, instr(i));
    }
  }

  bool any_movable() const {
    return std::find(movable_.begin(), movable_.end(), true) != movable_.end();
  }

  // Positions within the segment, in the new order.
  std::vector<int32_t> run() {
    find_edges();
    find_deadlines();
    list_schedule();
    return emit();
  }

 private:
  const Instr& instr(int32_t i) const { return program_.instrs[begin_ + i]; }
  int lane(int32_t i) const { return static_cast<int>(instr(i).lane); }

  // ---- conflicts ----------------------------------------------------------------------------

  // Last accesses to some bytes. Lanes other than those of copies keep their order, so of each the
  // last access is enough.
  struct Cell {
    std::array<int32_t, kLaneCount> write, read;
    std::vector<int32_t> reading_copies;  // since the last write
    Cell() {
      write.fill(-1);
      read.fill(-1);
    }
  };

  void add_edge(int32_t from, int32_t to) {
    if (from >= 0 && from != to) edges_.emplace_back(from, to);
  }

  void find_edges() {
    // Cells are cut at the ends of accesses to each buffer that a movable copy touches, whichever
    // version: two versions of one buffer count as the same bytes only where the version depends on
    // the iteration.
    std::vector<int8_t> wanted(set_.buffers.size(), 0);
    for (int32_t i = 0; i < count_; ++i)
      if (movable_[i])
        for (const Access& a : instr(i).access) wanted[a.buffer] = 1;
    std::vector<std::vector<int64_t>> cuts(set_.buffers.size());
    std::vector<int8_t> by_iteration(set_.buffers.size(), 0);
    for (int32_t i = 0; i < count_; ++i)
      for (const Access& a : instr(i).access)
        if (wanted[a.buffer] && a.version.step != 0) by_iteration[a.buffer] = 1;
    const auto range_of = [&](const Access& a) -> std::pair<int64_t, int64_t> {
      const Buffer& b = set_.buffers[a.buffer];
      if (by_iteration[a.buffer]) return {0, b.bytes};
      const int64_t at = (a.version.base % b.versions) * b.bytes;
      return {at + a.offset, at + a.offset + a.bytes};
    };
    for (int32_t i = 0; i < count_; ++i)
      for (const Access& a : instr(i).access) {
        if (!wanted[a.buffer] || a.bytes == 0) continue;
        const auto [from, to] = range_of(a);
        cuts[a.buffer].push_back(from);
        cuts[a.buffer].push_back(to);
      }
    std::vector<std::vector<Cell>> cells(set_.buffers.size());
    for (size_t b = 0; b < cuts.size(); ++b) {
      std::sort(cuts[b].begin(), cuts[b].end());
      cuts[b].erase(std::unique(cuts[b].begin(), cuts[b].end()), cuts[b].end());
      cells[b].resize(cuts[b].size());
    }
    for (int32_t i = 0; i < count_; ++i) {
      const bool copies = movable_[i];
      for (const bool writes : {false, true})
        for (const Access& a : instr(i).access) {
          if (!wanted[a.buffer] || a.bytes == 0 || a.write != writes) continue;
          const auto [from, to] = range_of(a);
          const std::vector<int64_t>& cut = cuts[a.buffer];
          size_t c = std::lower_bound(cut.begin(), cut.end(), from) - cut.begin();
          for (; cut[c] < to; ++c) {
            Cell& cell = cells[a.buffer][c];
            for (const int32_t w : cell.write) add_edge(w, i);
            if (!writes) {
              if (copies)
                cell.reading_copies.push_back(i);
              else
                cell.read[lane(i)] = i;
              continue;
            }
            for (const int32_t r : cell.read) add_edge(r, i);
            for (const int32_t r : cell.reading_copies) add_edge(r, i);
            cell = Cell();
            cell.write[lane(i)] = i;
          }
        }
    }
    std::sort(edges_.begin(), edges_.end());
    edges_.erase(std::unique(edges_.begin(), edges_.end()), edges_.end());
    first_edge_.assign(count_ + 1, 0);
    for (const auto& [from, to] : edges_) ++first_edge_[from + 1];
    for (int32_t i = 0; i < count_; ++i) first_edge_[i + 1] += first_edge_[i];
  }

  template <typename Visit>
  void each_successor(int32_t i, const Visit& visit) const {
    for (int32_t e = first_edge_[i]; e < first_edge_[i + 1]; ++e) visit(edges_[e].second);
  }

  // ---- when each is needed ------------------------------------------------------------------

  // The latest begin that lets the compute lane go on without a pause.
  void find_deadlines() {
    double end = 0;
    deadline_.assign(count_, 0);
    for (int32_t i = 0; i < count_; ++i)
      if (instr(i).lane == Lane::compute) {
        deadline_[i] = end;
        end += seconds_[i];
      }
    std::array<double, kLaneCount> next;
    next.fill(end);
    for (int32_t i = count_ - 1; i >= 0; --i) {
      if (instr(i).lane == Lane::compute) continue;
      double by = is_copy_lane(instr(i).lane) ? end : next[lane(i)];
      each_successor(i, [&](int32_t s) { by = std::min(by, deadline_[s]); });
      deadline_[i] = next[lane(i)] = by - seconds_[i];
    }
  }

  // ---- the schedule -------------------------------------------------------------------------

  void list_schedule() {
    std::vector<int32_t> pending(count_, 0);  // predecessors that have not ended
    for (const auto& [from, to] : edges_) ++pending[to];
    using Ready = std::tuple<double, int32_t>;  // key, position: the least first
    struct LaneQueue {
      std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
      std::vector<int32_t> order;  // of lanes that keep theirs
      size_t next = 0;
      bool busy = false;
    };
    std::array<LaneQueue, kLaneCount> lanes;
    for (int32_t i = 0; i < count_; ++i)
      if (!is_copy_lane(instr(i).lane)) lanes[lane(i)].order.push_back(i);
    const auto becomes_ready = [&](int32_t i) {
      if (is_copy_lane(instr(i).lane)) lanes[lane(i)].ready.emplace(deadline_[i], i);
    };
    for (int32_t i = 0; i < count_; ++i)
      if (pending[i] == 0) becomes_ready(i);
    begin_at_.assign(count_, 0);
    std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ends;
    double now = 0;
    for (;;) {
      for (LaneQueue& queue : lanes) {
        if (queue.busy) continue;
        int32_t chosen = -1;
        if (!queue.ready.empty()) {
          chosen = std::get<1>(queue.ready.top());
          queue.ready.pop();
        } else if (queue.next < queue.order.size() && pending[queue.order[queue.next]] == 0) {
          chosen = queue.order[queue.next++];
        }
        if (chosen < 0) continue;
        queue.busy = true;
        begin_at_[chosen] = now;
        ends.emplace(now + seconds_[chosen], chosen);
      }
      if (ends.empty()) break;
      now = std::get<0>(ends.top());
      // All that end now, so that a lane chooses among all that can begin now.
      while (!ends.empty() && std::get<0>(ends.top()) <= now) {
        const int32_t ended = std::get<1>(ends.top());
        ends.pop();
        lanes[lane(ended)].busy = false;
        each_successor(ended, [&](int32_t s) {
          if (--pending[s] == 0) becomes_ready(s);
        });
      }
    }
  }

  // By the begins found, as far as conflicts and the order of what must not move allow.
  std::vector<int32_t> emit() const {
    std::vector<int32_t> pending(count_, 0), next_fixed(count_, -1);
    for (const auto& [from, to] : edges_) ++pending[to];
    int32_t before = -1;
    for (int32_t i = 0; i < count_; ++i) {
      if (movable_[i]) continue;
      if (before >= 0) {
        next_fixed[before] = i;
        ++pending[i];
      }
      before = i;
    }
    using Ready = std::tuple<double, int32_t>;
    std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
    for (int32_t i = 0; i < count_; ++i)
      if (pending[i] == 0) ready.emplace(begin_at_[i], i);
    std::vector<int32_t> order;
    order.reserve(count_);
    while (!ready.empty()) {
      const int32_t i = std::get<1>(ready.top());
      ready.pop();
      order.push_back(i);
      const auto release = [&](int32_t s) {
        if (--pending[s] == 0) ready.emplace(begin_at_[s], s);
      };
      each_successor(i, release);
      if (next_fixed[i] >= 0) release(next_fixed[i]);
    }
    return order;
  }

  const ProgramSet& set_;
  const Program& program_;
  const InstrId begin_;
  const int32_t count_;
  std::vector<bool> movable_;
  std::vector<double> seconds_;
  std::vector<std::pair<int32_t, int32_t>> edges_;  // sorted
  std::vector<int32_t> first_edge_;                 // by predecessor, and one more
  std::vector<double> deadline_, begin_at_;
};

ProgramOperand part_of(const ProgramOperand& whole, int64_t begin, int64_t count) {
  ProgramOperand part = whole;
  part.offset += begin * size_of(whole.dtype);
  part.dims = Dims(count);
  return part;
}

void cut_copies(ProgramSet& set, Program& program, int64_t most_bytes) {
  std::vector<Instr> cut;
  cut.reserve(program.instrs.size());
  for (Segment& segment : program.segments) {
    const auto begin = static_cast<InstrId>(cut.size());
    for (InstrId i = segment.begin; i < segment.end; ++i) {
      Instr& whole = program.instrs[i];
      if (!movable(whole, set.buffers) || whole.in[0].bytes() <= most_bytes) {
        cut.push_back(std::move(whole));
        continue;
      }
      const int64_t size = size_of(whole.in[0].dtype), all = whole.in[0].dims.count();
      const int64_t pieces = std::min(kMostPieces, (all * size + most_bytes - 1) / most_bytes);
      const int64_t most = round_up((all + pieces - 1) / pieces, kPieceElements);
      for (int64_t at = 0; at < all; at += most) {
        const int64_t count = std::min(most, all - at);
        Instr& piece = cut.emplace_back(whole);
        piece.in[0] = part_of(whole.in[0], at, count);
        piece.out[0] = part_of(whole.out[0], at, count);
        for (Access& a : piece.access) {
          a.offset += at * size;
          a.bytes = count * size;
        }
      }
    }
    segment.begin = begin;
    segment.end = static_cast<InstrId>(cut.size());
  }
  program.instrs = std::move(cut);
}

}  // namespace

void order_copies(ProgramSet& set, int64_t most_bytes, const InstrSeconds& seconds) {
  for (Program& program : set.programs) {
    cut_copies(set, program, most_bytes);
    for (const Segment& segment : program.segments) {
      SegmentOrder segment_order(set, program, segment, seconds);
      if (!segment_order.any_movable()) continue;
      const std::vector<int32_t> order = segment_order.run();
      std::vector<Instr> ordered;
      ordered.reserve(order.size());
      for (const int32_t i : order) ordered.push_back(std::move(program.instrs[segment.begin + i]));
      std::move(ordered.begin(), ordered.end(), program.instrs.begin() + segment.begin);
    }
  }
}

}  // namespace spillway
