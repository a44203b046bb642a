// Exchanges between ranks. On one rank every exchange is on one lane, so their order there is
// total, and every other happens-before edge leads forward in issue order: a circle over several
// ranks is a circle over exchanges, those that talk to each other merged into one node.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "verify/passes.h"

namespace spillway {
namespace {

using verify_detail::Report;

bool reaches(const ProgramTransfer& t, int rank) {
  const int32_t off = rank - t.peer;
  return off >= 0 && off / t.stride < t.count && off % t.stride == 0;
}

struct Node {  // one exchange in one iteration on one rank
  const Instr* instr;
  int rank;  // index into the span
};

class Ranks {
 public:
  Ranks(std::span<const RankProgram> ranks, Report& report) : ranks_(ranks), report_(report) {}

  void check() {
    for (size_t r = 0; r < ranks_.size(); ++r)
      if (!index_.emplace(ranks_[r].rank, static_cast<int>(r)).second)
        add(r, "rank {} is given twice", ranks_[r].rank);
    if (!report_.findings.empty()) return;
    talks_.resize(ranks_.size());
    for (size_t r = 0; r < ranks_.size(); ++r) collect(r);
    merged_.resize(nodes_.size());
    std::iota(merged_.begin(), merged_.end(), 0);
    for (size_t r = 0; r < ranks_.size(); ++r)
      for (size_t s = r + 1; s < ranks_.size(); ++s) match(r, s);
    circles();
  }

 private:
  template <class... Args>
  void add(size_t r, fmt::format_string<Args...> format, Args&&... args) {
    report_.add({fmt::format(format, std::forward<Args>(args)...), ranks_[r].program->name, "", "",
                 "", 0, 0});
  }
  void add(size_t r, const Instr& instr, const Instr* other, std::string what) {
    report_.add(
        {std::move(what), ranks_[r].program->name, instr.name, other ? other->name : "", "", 0, 0});
  }

  // Nodes of a rank in issue order, and which of them talk to whom.
  void collect(size_t r) {
    const Program& program = *ranks_[r].program;
    for (const Segment& segment : program.segments)
      for (int32_t i = 0; i < segment.trip; ++i)
        for (InstrId id = segment.begin; id < segment.end; ++id) {
          const Instr& instr = program.instrs[id];
          if (instr.kind != InstrKind::exchange) continue;
          const int node = static_cast<int>(nodes_.size());
          nodes_.push_back({&instr, static_cast<int>(r)});
          for (const ProgramTransfer& t : instr.transfers) {
            const int rank = ranks_[r].rank;
            if (t.peer < 0 || reaches(t, rank)) {
              add(r, instr, nullptr,
                  fmt::format("no exchange with rank {}", t.peer < 0 ? t.peer : rank));
              continue;
            }
            for (const auto& [peer, place] : index_) {
              if (!reaches(t, peer)) continue;
              auto& list = talks_[r][place];
              if (list.empty() || list.back() != node) list.push_back(node);
            }
          }
        }
  }

  static std::vector<int64_t> messages(const Instr& instr, int peer, bool send) {
    std::vector<int64_t> bytes;
    for (const ProgramTransfer& t : instr.transfers)
      if (t.send == send && reaches(t, peer))
        bytes.push_back(t.bytes((send ? instr.in : instr.out)[t.operand]));
    return bytes;
  }

  void match(size_t r, size_t s) {
    const std::vector<int>&a = talks_[r][static_cast<int>(s)], &b = talks_[s][static_cast<int>(r)];
    if (a.size() != b.size())
      add(r, "rank {} exchanges {} times with rank {}, which does so {} times", ranks_[r].rank,
          a.size(), ranks_[s].rank, b.size());
    std::set<std::pair<const Instr*, const Instr*>> seen;
    for (size_t k = 0; k < std::min(a.size(), b.size()); ++k) {
      const Instr &x = *nodes_[a[k]].instr, &y = *nodes_[b[k]].instr;
      merge(a[k], b[k]);
      if (!seen.insert({&x, &y}).second) continue;
      const std::string pair = fmt::format("ranks {} and {}", ranks_[r].rank, ranks_[s].rank);
      if (x.name != y.name || x.sequence != y.sequence)
        add(r, x, &y,
            fmt::format("{} issue different exchanges (sequence {} and {})", pair, x.sequence,
                        y.sequence));
      for (bool send : {false, true})
        if (messages(x, ranks_[s].rank, send) != messages(y, ranks_[r].rank, !send))
          add(r, x, &y, fmt::format("{} disagree on the messages of an exchange", pair));
    }
  }

  int find(int node) {
    while (merged_[node] != node) node = merged_[node] = merged_[merged_[node]];
    return node;
  }
  void merge(int a, int b) { merged_[find(a)] = find(b); }

  // Takes nodes away that nothing comes before; what stays lies on a circle or behind one.
  void circles() {
    const int count = static_cast<int>(nodes_.size());
    std::vector<std::vector<int>> next(count);
    std::vector<int> before(count, 0), ready;
    for (int n = 0; n + 1 < count; ++n)
      if (nodes_[n].rank == nodes_[n + 1].rank) {
        next[find(n)].push_back(find(n + 1));
        ++before[find(n + 1)];
      }
    for (int n = 0; n < count; ++n)
      if (find(n) == n && before[n] == 0) ready.push_back(n);
    std::vector<bool> done(count, false);
    while (!ready.empty()) {
      const int n = ready.back();
      ready.pop_back();
      done[n] = true;
      for (int m : next[n])
        if (--before[m] == 0) ready.push_back(m);
    }
    for (int n = 0; n < count; ++n)
      if (!done[find(n)]) {
        add(nodes_[n].rank, *nodes_[n].instr, nullptr,
            fmt::format("deadlock: rank {} waits in a circle of exchanges",
                        ranks_[nodes_[n].rank].rank));
        return;
      }
  }

  std::span<const RankProgram> ranks_;
  Report& report_;
  std::map<int, int> index_;  // rank → place in the span
  std::vector<Node> nodes_;
  std::vector<std::map<int, std::vector<int>>> talks_;  // by rank: peer's place → nodes
  std::vector<int> merged_;
};

}  // namespace

std::vector<Finding> verify_ranks(std::span<const RankProgram> ranks) {
  verify_detail::Report report;
  Ranks(ranks, report).check();
  return report.findings;
}

}  // namespace spillway
