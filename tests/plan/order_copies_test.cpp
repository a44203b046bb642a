// Copies in another order and in pieces: what is needed first goes first, and nothing else changes.
// links: spillway_program
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "program/stages.h"

namespace spillway {
namespace {

// Buffers of the host in the order of their names; device buffers beside them.
class Hand {
 public:
  Hand() {
    set.programs.resize(1);
    set.programs[0].segments.push_back({"all", 1, 0, 0});
  }
  BufferId buffer(Tier tier, int64_t floats, int32_t versions = 1) {
    Buffer b;
    b.tier = tier;
    b.bytes = 4 * floats;
    b.versions = versions;
    set.buffers.push_back(b);
    return static_cast<BufferId>(set.buffers.size()) - 1;
  }
  void copy(const std::string& name, BufferId from, BufferId to, int64_t floats,
            Affine to_version = {}, Affine from_version = {}) {
    Instr i;
    i.kind = InstrKind::copy;
    i.lane = set.buffers[to].tier == Tier::device ? Lane::h2d : Lane::d2h;
    i.name = name;
    i.in = {operand(from, floats, from_version)};
    i.out = {operand(to, floats, to_version)};
    push(std::move(i));
  }
  void op(const std::string& name, BufferId reads, BufferId writes, int64_t floats,
          Affine version = {}) {
    Instr i;
    i.lane = Lane::compute;
    i.name = name;
    if (reads >= 0) i.in = {operand(reads, floats, version)};
    if (writes >= 0) i.out = {operand(writes, floats, version)};
    push(std::move(i));
  }
  std::vector<std::string> ordered(int64_t most_bytes, std::map<std::string, double> seconds) {
    order_copies(set, most_bytes, [&](const Program&, const Instr& i) {
      const auto known = seconds.find(i.name);
      return known == seconds.end() ? 1.0 : known->second;
    });
    std::vector<std::string> names;
    for (const Instr& i : set.programs[0].instrs) names.push_back(i.name);
    return names;
  }
  ProgramSet set;

 private:
  static ProgramOperand operand(BufferId b, int64_t floats, Affine version) {
    ProgramOperand o;
    o.buffer = b;
    o.version = version;
    o.dims = Dims(floats);
    return o;
  }
  void push(Instr i) {
    for (const ProgramOperand& o : i.in)
      i.access.push_back({o.buffer, o.version, o.offset, o.bytes(), false});
    for (const ProgramOperand& o : i.out)
      i.access.push_back({o.buffer, o.version, o.offset, o.bytes(), true});
    set.programs[0].instrs.push_back(std::move(i));
    ++set.programs[0].segments.back().end;
  }
};

using Names = std::vector<std::string>;

TEST(OrderCopies, WhatIsNeededFirstGoesFirst) {
  Hand hand;
  const BufferId home = hand.buffer(Tier::host, 8), late = hand.buffer(Tier::device, 8),
                 soon = hand.buffer(Tier::device, 8);
  hand.copy("fetch late", home, late, 8);
  hand.copy("fetch soon", home, soon, 8);
  hand.op("use soon", soon, -1, 8);
  hand.op("use late", late, -1, 8);
  EXPECT_EQ(hand.ordered(1000, {}), (Names{"fetch soon", "fetch late", "use soon", "use late"}));
}

TEST(OrderCopies, ASlotThatIsFetchedIntoAgainLeavesFirst) {
  Hand hand;
  const BufferId home = hand.buffer(Tier::host, 8), other = hand.buffer(Tier::host, 8),
                 next = hand.buffer(Tier::host, 8), ring = hand.buffer(Tier::device, 8, 2),
                 spare = hand.buffer(Tier::device, 8);
  hand.copy("keep", spare, other, 8);
  hand.copy("leave", ring, home, 8, {}, {1, 0});
  hand.copy("fetch", next, ring, 8, {1, 0});
  hand.op("use", ring, -1, 8, {1, 0});
  EXPECT_EQ(hand.ordered(1000, {}), (Names{"leave", "keep", "fetch", "use"}));
}

TEST(OrderCopies, TheUrgentOvertakeBetweenPieces) {
  Hand hand;
  const int64_t floats = 8 * 1024;
  const BufferId home = hand.buffer(Tier::host, floats), small = hand.buffer(Tier::host, 8),
                 big = hand.buffer(Tier::device, floats), made = hand.buffer(Tier::device, 8),
                 back = hand.buffer(Tier::device, 8);
  hand.copy("big", home, big, floats);
  hand.op("make", -1, made, 8);
  hand.copy("leave", made, small, 8);
  hand.copy("return", small, back, 8);
  hand.op("work", -1, -1, 0);
  hand.op("use", back, -1, 8);
  hand.op("use big", big, -1, floats);
  const Names order =
      hand.ordered(4 * 2048, {{"big", 1}, {"make", 1.5}, {"leave", 0.1}, {"return", 0.1}});
  EXPECT_EQ(order, (Names{"big", "make", "big", "leave", "work", "return", "big", "use", "big",
                          "use big"}));
  // The pieces are the whole.
  int64_t at = 0;
  for (const Instr& i : hand.set.programs[0].instrs) {
    if (i.name != "big") continue;
    EXPECT_EQ(i.in[0].offset, at);
    EXPECT_EQ(i.out[0].offset, at);
    EXPECT_EQ(i.access[0].offset, at);
    EXPECT_EQ(i.access[1].bytes, i.out[0].bytes());
    at += i.in[0].bytes();
  }
  EXPECT_EQ(at, 4 * floats);
}

TEST(OrderCopies, WhatSharesItsBytesStaysWhereItIs) {
  Hand hand;
  const BufferId home = hand.buffer(Tier::host, 8), late = hand.buffer(Tier::device, 8),
                 soon = hand.buffer(Tier::device, 8);
  hand.set.buffers[late].pinned_region = false;
  hand.set.buffers[soon].pinned_region = false;
  hand.copy("fetch late", home, late, 8);
  hand.copy("fetch soon", home, soon, 8);
  hand.op("use soon", soon, -1, 8);
  hand.op("use late", late, -1, 8);
  EXPECT_EQ(hand.ordered(4, {}), (Names{"fetch late", "fetch soon", "use soon", "use late"}));
}

}  // namespace
}  // namespace spillway
