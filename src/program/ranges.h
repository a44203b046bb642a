// Sets of elements of a tensor, as sorted ranges that neither overlap nor touch.
#pragma once

#include <cstdint>
#include <vector>

namespace spillway {

struct ElementRange {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

class RangeSet {
 public:
  const std::vector<ElementRange>& ranges() const { return ranges_; }
  bool empty() const { return ranges_.empty(); }
  void add(ElementRange range);  // nothing if it is empty
  void add(const RangeSet& other);
  RangeSet without(const RangeSet& other) const;
  RangeSet common(const RangeSet& other) const;
  // Index of the range that holds all of `range`, which is not empty; -1: none.
  int32_t find(ElementRange range) const;

 private:
  std::vector<ElementRange> ranges_;
};

}  // namespace spillway
