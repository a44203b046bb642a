// Sets of elements of a tensor, as sorted ranges that neither overlap nor touch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace spillway {

struct ElementRange {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

// Most sets are one range, which needs no memory of its own.
class RangeSet {
 public:
  std::span<const ElementRange> ranges() const {
    if (!several_.empty()) return several_;
    return {&only_, only_.count() > 0 ? 1u : 0u};
  }
  bool empty() const { return several_.empty() && only_.count() == 0; }
  void add(ElementRange range);  // nothing if it is empty
  void add(const RangeSet& other);
  RangeSet without(const RangeSet& other) const;
  RangeSet common(const RangeSet& other) const;

 private:
  ElementRange only_;  // if several_ is empty: all of the set, or of no elements
  std::vector<ElementRange> several_;
};

}  // namespace spillway
