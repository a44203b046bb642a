#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include "program/stages.h"

namespace spillway {
namespace {

constexpr int64_t kAlign = 256;

struct Life : Lifetime {
  int64_t bytes = 0;
};

// Best fit in order of birth: free gaps are kept sorted by offset; a buffer takes the smallest gap
// that holds it, or extends the region. O(n log n) but for the scan of gaps, which are few.
int64_t pack_by_birth(std::vector<Life> lives, std::vector<int64_t>& offset) {
  std::sort(lives.begin(), lives.end(), [](const Life& a, const Life& b) {
    return std::tie(a.first, b.bytes, a.buffer) < std::tie(b.first, a.bytes, b.buffer);
  });
  using Death = std::tuple<InstrId, int64_t, int64_t>;  // last use, offset, bytes
  std::priority_queue<Death, std::vector<Death>, std::greater<>> deaths;
  std::map<int64_t, int64_t> gaps;  // offset → bytes
  int64_t top = 0;
  const auto release = [&](int64_t at, int64_t bytes) {
    auto next = gaps.lower_bound(at);
    if (next != gaps.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second == at) {
        at = before->first, bytes += before->second;
        gaps.erase(before);
      }
    }
    if (next != gaps.end() && at + bytes == next->first) {
      bytes += next->second;
      gaps.erase(next);
    }
    gaps[at] = bytes;
  };
  for (const Life& life : lives) {
    while (!deaths.empty() && std::get<0>(deaths.top()) < life.first) {
      const auto [last, at, bytes] = deaths.top();
      deaths.pop();
      release(at, bytes);
    }
    auto best = gaps.end();
    for (auto it = gaps.begin(); it != gaps.end(); ++it)
      if (it->second >= life.bytes && (best == gaps.end() || it->second < best->second)) best = it;
    int64_t at = top;
    if (best != gaps.end()) {
      at = best->first;
      const int64_t rest = best->second - life.bytes;
      gaps.erase(best);
      if (rest > 0) gaps[at + life.bytes] = rest;
    } else if (!gaps.empty() && gaps.rbegin()->first + gaps.rbegin()->second == top) {
      at = gaps.rbegin()->first;
      gaps.erase(at);
      top = at + life.bytes;
    } else {
      top += life.bytes;
    }
    offset[life.buffer] = at;
    deaths.emplace(life.last, at, life.bytes);
  }
  return top;
}

// Largest first, each at the lowest offset free over its lifetime. Often tighter, quadratic at
// worst: who is alive with whom is looked up by short spans of time.
int64_t pack_by_size(std::vector<Life> lives, std::vector<int64_t>& offset) {
  std::sort(lives.begin(), lives.end(), [](const Life& a, const Life& b) {
    return std::tie(b.bytes, a.first, a.buffer) < std::tie(a.bytes, b.first, b.buffer);
  });
  InstrId begin = std::numeric_limits<InstrId>::max(), end = 0;
  for (const Life& life : lives) {
    begin = std::min(begin, life.first);
    end = std::max(end, life.last);
  }
  constexpr InstrId kSpan = 32;  // instructions
  std::vector<std::vector<const Life*>> placed(lives.empty() ? 0 : (end - begin) / kSpan + 1);
  std::vector<std::pair<int64_t, int64_t>> taken;
  int64_t top = 0;
  for (const Life& life : lives) {
    taken.clear();
    for (InstrId span = (life.first - begin) / kSpan; span <= (life.last - begin) / kSpan; ++span) {
      for (const Life* other : placed[span])
        if (other->first <= life.last && life.first <= other->last)
          taken.emplace_back(offset[other->buffer], offset[other->buffer] + other->bytes);
      placed[span].push_back(&life);
    }
    std::sort(taken.begin(), taken.end());
    int64_t at = 0;
    for (const auto& [from, to] : taken) {
      if (at + life.bytes <= from) break;
      at = std::max(at, to);
    }
    offset[life.buffer] = at;
    top = std::max(top, at + life.bytes);
  }
  return top;
}

int64_t live_peak(const std::vector<Life>& lives) {
  if (lives.empty()) return 0;
  InstrId begin = lives[0].first, end = 0;
  for (const Life& life : lives) {
    begin = std::min(begin, life.first);
    end = std::max(end, life.last + 1);
  }
  std::vector<int64_t> change(static_cast<size_t>(end - begin) + 1, 0);  // by instruction
  for (const Life& life : lives) {
    change[life.first - begin] += life.bytes;
    change[life.last + 1 - begin] -= life.bytes;
  }
  int64_t live = 0, peak = 0;
  for (const int64_t delta : change) peak = std::max(peak, live += delta);
  return peak;
}

constexpr size_t kQuadraticLimit = 3000;

int64_t pack_shared(const std::vector<Life>& lives, std::vector<int64_t>& offset) {
  std::vector<int64_t> other(offset);
  const int64_t by_birth = pack_by_birth(lives, offset);
  if (by_birth == live_peak(lives) || lives.size() > kQuadraticLimit) return by_birth;
  const int64_t by_size = pack_by_size(lives, other);
  if (by_size >= by_birth) return by_birth;
  offset.swap(other);
  return by_size;
}

}  // namespace

namespace {

ArenaLayout pack_buffers(const std::vector<Buffer>& buffers,
                         const std::vector<SharedUse>& programs) {
  ArenaLayout layout;
  const size_t n = buffers.size();
  layout.offset.assign(n, 0);
  layout.version_stride.assign(n, 0);
  int64_t top[kTierCount] = {0, 0};
  // What outlives a step first, so that programs that share it agree whatever else they hold.
  for (const Scope scope : {Scope::run, Scope::step, Scope::iteration}) {
    for (size_t b = 0; b < n; ++b) {
      const Buffer& buffer = buffers[b];
      layout.version_stride[b] = round_up(buffer.bytes, kAlign);
      if (!buffer.pinned_region || buffer.scope != scope) continue;
      int64_t& t = top[static_cast<int>(buffer.tier)];
      layout.offset[b] = t;
      t += layout.version_stride[b] * buffer.versions;
    }
  }
  // Buffers that share bytes: packed within each program by their lifetimes in issue order; the
  // region starts at the same place for every program.
  int64_t shared_top = 0;
  for (const SharedUse& program : programs) {
    // Segments run one after the other, so each is packed alone.
    for (const Segment& segment : program.segments) {
      std::vector<Life> of_segment;
      for (const Lifetime& life : program.lives)
        if (life.first >= segment.begin && life.first < segment.end)
          of_segment.push_back({life, layout.version_stride[life.buffer]});
      shared_top = std::max(shared_top, pack_shared(of_segment, layout.offset));
    }
    for (const Lifetime& life : program.lives)
      layout.offset[life.buffer] += top[static_cast<int>(Tier::device)];
  }
  top[static_cast<int>(Tier::device)] += shared_top;
  for (int t = 0; t < kTierCount; ++t) layout.tier_bytes[t] = top[t];
  return layout;
}

}  // namespace

void SharedUse::add(BufferId buffer, InstrId at, const std::vector<Buffer>& buffers) {
  if (buffers[buffer].pinned_region) return;
  if (static_cast<size_t>(buffer) >= life_of.size()) life_of.resize(buffers.size(), -1);
  int32_t& life = life_of[buffer];
  if (life < 0) {
    life = static_cast<int32_t>(lives.size());
    lives.push_back({buffer, at, at});
  }
  lives[life].last = at;
}

ArenaLayout pack(const ProgramSet& set) {
  std::vector<SharedUse> programs;
  for (const Program& program : set.programs) {
    SharedUse& use = programs.emplace_back();
    use.segments = program.segments;
    for (InstrId i = 0; i < static_cast<InstrId>(program.instrs.size()); ++i)
      for (const Access& a : program.instrs[i].access) use.add(a.buffer, i, set.buffers);
  }
  return pack_buffers(set.buffers, programs);
}

ArenaLayout pack(const Outline& outline) { return pack_buffers(outline.buffers, outline.programs); }

}  // namespace spillway
