#include "program/ranges.h"

#include <algorithm>

namespace spillway {

void RangeSet::add(ElementRange range) {
  if (range.count() <= 0) return;
  if (several_.empty()) {
    if (only_.count() == 0) {
      only_ = range;
      return;
    }
    if (only_.begin <= range.end && range.begin <= only_.end) {
      only_ = {std::min(only_.begin, range.begin), std::max(only_.end, range.end)};
      return;
    }
    several_.push_back(only_);
  }
  const auto first =
      std::lower_bound(several_.begin(), several_.end(), range.begin,
                       [](const ElementRange& r, int64_t begin) { return r.end < begin; });
  auto last = first;
  for (; last != several_.end() && last->begin <= range.end; ++last) {
    range.begin = std::min(range.begin, last->begin);
    range.end = std::max(range.end, last->end);
  }
  several_.insert(several_.erase(first, last), range);
}

void RangeSet::add(const RangeSet& other) {
  for (const ElementRange& range : other.ranges()) add(range);
}

RangeSet RangeSet::without(const RangeSet& other) const {
  RangeSet result;
  const std::span<const ElementRange> holes = other.ranges();
  auto hole = holes.begin();
  for (const ElementRange& range : ranges()) {
    int64_t begin = range.begin;
    while (hole != holes.end() && hole->end <= begin) ++hole;
    for (auto h = hole; h != holes.end() && h->begin < range.end; ++h) {
      result.add({begin, h->begin});
      begin = std::max(begin, h->end);
    }
    result.add({begin, range.end});
  }
  return result;
}

RangeSet RangeSet::common(const RangeSet& other) const { return without(without(other)); }

}  // namespace spillway
