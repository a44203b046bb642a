#include "program/ranges.h"

#include <algorithm>

namespace spillway {

void RangeSet::add(ElementRange range) {
  if (range.count() <= 0) return;
  const auto first =
      std::lower_bound(ranges_.begin(), ranges_.end(), range.begin,
                       [](const ElementRange& r, int64_t begin) { return r.end < begin; });
  auto last = first;
  for (; last != ranges_.end() && last->begin <= range.end; ++last) {
    range.begin = std::min(range.begin, last->begin);
    range.end = std::max(range.end, last->end);
  }
  ranges_.insert(ranges_.erase(first, last), range);
}

void RangeSet::add(const RangeSet& other) {
  for (const ElementRange& range : other.ranges_) add(range);
}

RangeSet RangeSet::without(const RangeSet& other) const {
  RangeSet result;
  auto hole = other.ranges_.begin();
  for (const ElementRange& range : ranges_) {
    int64_t begin = range.begin;
    while (hole != other.ranges_.end() && hole->end <= begin) ++hole;
    for (auto h = hole; h != other.ranges_.end() && h->begin < range.end; ++h) {
      result.add({begin, h->begin});
      begin = std::max(begin, h->end);
    }
    result.add({begin, range.end});
  }
  return result;
}

RangeSet RangeSet::common(const RangeSet& other) const { return without(without(other)); }

int32_t RangeSet::find(ElementRange range) const {
  const auto it = std::lower_bound(ranges_.begin(), ranges_.end(), range.end,
                                   [](const ElementRange& r, int64_t end) { return r.end < end; });
  if (it == ranges_.end() || it->begin > range.begin) return -1;
  return static_cast<int32_t>(it - ranges_.begin());
}

}  // namespace spillway
