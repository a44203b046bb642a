// Sets of ranges beside sets of single elements.
// links: spillway_program
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "program/ranges.h"

namespace spillway {
namespace {

std::set<int64_t> elements(const RangeSet& set) {
  std::set<int64_t> result;
  int64_t end = -1;
  for (const ElementRange& range : set.ranges()) {
    EXPECT_LT(range.begin, range.end);
    EXPECT_GT(range.begin, end) << "ranges overlap, touch or are out of order";
    end = range.end;
    for (int64_t i = range.begin; i < range.end; ++i) result.insert(i);
  }
  return result;
}

TEST(RangeSet, IsASetOfElements) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int trial = 0; trial < 2000; ++trial) {
    RangeSet sets[2];
    std::set<int64_t> plain[2];
    for (int which = 0; which < 2; ++which)
      for (uint64_t n = random() % 8; n > 0; --n) {
        const int64_t begin = static_cast<int64_t>(random() % 40);
        const int64_t end = begin + static_cast<int64_t>(random() % 8);
        sets[which].add({begin, end});
        for (int64_t i = begin; i < end; ++i) plain[which].insert(i);
        ASSERT_EQ(elements(sets[which]), plain[which]);
      }
    std::set<int64_t> both, first_only, either = plain[0];
    for (const int64_t i : plain[0]) (plain[1].contains(i) ? both : first_only).insert(i);
    either.insert(plain[1].begin(), plain[1].end());
    ASSERT_EQ(elements(sets[0].common(sets[1])), both);
    ASSERT_EQ(elements(sets[0].without(sets[1])), first_only);
    RangeSet sum = sets[0];
    sum.add(sets[1]);
    ASSERT_EQ(elements(sum), either);
  }
}

}  // namespace
}  // namespace spillway
