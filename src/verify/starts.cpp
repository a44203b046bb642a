// Start-up time of copies, in what rings have room for.
#include <algorithm>
#include <limits>

#include "verify/step_work.h"

namespace spillway::verify_detail {
namespace {

// The most parts that do not overlap, from the slot's end down: each begins as late as it can.
double room(const Slot& slot, double start) {
  int parts = 0;
  int64_t limit = std::numeric_limits<int64_t>::max();
  for (auto part = slot.filled.rbegin(); part != slot.filled.rend(); ++part)
    if (part->second <= limit) {
      limit = part->first;
      ++parts;
    }
  return 1 + parts * start / slot.bytes;
}

}  // namespace

Starts starts_of(const StepWork& work, StreamPool pool, double copy_seconds) {
  constexpr double kMost = 4;
  const double start = copy_seconds * std::max(rate_alone(work.resources, Traffic::h2d),
                                               rate_alone(work.resources, Traffic::d2h));
  double bytes = 0, copies = 0;
  for (const Choice& c : work.choices) {
    if (c.pool != pool || !c.streams) continue;
    for (const Streamed& streamed : c.streamed)
      for (const auto& [k, moved] : streamed.by_span) {
        bytes += work.spans[k].times * (moved.in + moved.out);
        copies += work.spans[k].times * (moved.in_copies + moved.out_copies);
      }
  }
  const double average = bytes > 0 ? 1 + copies * start / bytes : 1;
  Starts result;
  std::map<std::string, Slot> smallest;  // by ring, of all that count
  for (const Choice& c : work.choices) {
    bool count = c.pool == pool && c.streams;
    for (const Streamed& streamed : c.streamed)
      for (const auto& [ring, slot] : streamed.slots)
        count = count && room(slot, start) <= kMost * average;
    result.count.push_back(count);
    for (const Streamed& streamed : c.streamed)
      for (const auto& [ring, slot] : streamed.slots) {
        if (!count) continue;
        const auto [at, fresh] = smallest.try_emplace(ring, slot);
        at->second.bytes = std::min(at->second.bytes, slot.bytes);
        at->second.filled.insert(slot.filled.begin(), slot.filled.end());
      }
  }
  for (const auto& [ring, ring_pool] : work.rings) {
    const auto at = smallest.find(ring);
    result.room.push_back(at == smallest.end() ? 1 : room(at->second, start));
  }
  return result;
}

}  // namespace spillway::verify_detail
