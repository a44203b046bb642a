// What the verifier says of small programs made by hand: one test for each rule, and deadlocks
// between ranks.
// links: spillway_verify
#include "verify/verify.h"

#include <gtest/gtest.h>

#include <functional>

namespace spillway {
namespace {

ProgramOperand operand(BufferId buffer, int64_t elements, int64_t offset = 0) {
  ProgramOperand o;
  o.buffer = buffer;
  o.offset = offset;
  o.dims = Dims(elements);
  return o;
}

Instr instr(std::string name, InstrKind kind, Lane lane, std::vector<ProgramOperand> in,
            std::vector<ProgramOperand> out) {
  Instr i;
  i.name = std::move(name);
  i.kind = kind;
  i.lane = lane;
  i.in = std::move(in);
  i.out = std::move(out);
  for (const auto& o : i.in) i.access.push_back({o.buffer, o.version, o.offset, o.bytes(), false});
  for (const auto& o : i.out) i.access.push_back({o.buffer, o.version, o.offset, o.bytes(), true});
  return i;
}

struct Case {
  ProgramSet set;
  ArenaLayout layout;
  Limits limits;
};

// home (host) → slot → op → result → spill (host), with the waits this needs.
Case streamed() {
  Case c;
  auto buffer = [&](const char* name, Tier tier, Scope scope, int64_t offset) {
    Buffer b;
    b.name = name;
    b.tier = tier;
    b.scope = scope;
    b.bytes = 256;
    c.set.buffers.push_back(b);
    c.layout.offset.push_back(offset);
    c.layout.version_stride.push_back(256);
  };
  buffer("home", Tier::host, Scope::run, 0);
  buffer("spill", Tier::host, Scope::step, 256);
  buffer("slot", Tier::device, Scope::step, 0);
  buffer("result", Tier::device, Scope::iteration, 256);
  c.layout.tier_bytes[0] = c.layout.tier_bytes[1] = 512;
  Program p;
  p.name = "train";
  p.attrs.resize(1);
  p.instrs.push_back(
      instr("fetch", InstrKind::copy, Lane::h2d, {operand(0, 64)}, {operand(2, 64)}));
  p.instrs.push_back(
      instr("use", InstrKind::op, Lane::compute, {operand(2, 64)}, {operand(3, 64)}));
  p.instrs.push_back(
      instr("store", InstrKind::copy, Lane::d2h, {operand(3, 64)}, {operand(1, 64)}));
  p.instrs[0].waits = {{1}};
  p.instrs[0].entry_waits = 1u << static_cast<int>(Lane::compute);
  p.instrs[1].waits = {{0}, {2}};
  p.instrs[1].entry_waits = 1u << static_cast<int>(Lane::d2h);
  p.instrs[2].waits = {{1}};
  p.segments.push_back({"all", 5, 0, 3});
  c.set.programs.push_back(p);
  return c;
}

std::string judge(const Case& c) {
  const auto findings = verify(c.set, c.layout, c.limits);
  return findings.empty() ? "" : describe(findings[0]);
}

std::string after(const std::function<void(Case&, std::vector<Instr>&)>& change) {
  Case c = streamed();
  change(c, c.set.programs[0].instrs);
  return judge(c);
}

#define EXPECT_SAYS(text, words) EXPECT_PRED2(says, text, words)
bool says(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

TEST(Verify, CleanProgram) { EXPECT_EQ(judge(streamed()), ""); }

TEST(Verify, NamesWhatIsUnordered) {
  const std::string text = after([](Case&, auto& i) { i[1].waits.erase(i[1].waits.begin()); });
  EXPECT_SAYS(text, "a read may overtake the write before it");
  EXPECT_SAYS(text, "program \"train\"; instruction \"use\" against \"fetch\"; buffer \"slot\"");
  EXPECT_SAYS(text, "bytes [0, 256)");
  EXPECT_SAYS(after([](Case&, auto& i) { i[0].waits.clear(); }), "a write may overtake a read");
  EXPECT_SAYS(after([](Case&, auto& i) { i[1].entry_waits = 0; }),
              "a write may overtake a read of the program before (\"train\")");
}

TEST(Verify, Layout) {
  EXPECT_SAYS(after([](Case& c, auto&) { c.limits.tier_bytes[0] = 511; }), "capacity of 511");
  EXPECT_SAYS(after([](Case& c, auto&) { c.layout.tier_bytes[0] = 256; }), "beyond its arena");
  EXPECT_SAYS(after([](Case& c, auto&) { c.layout.offset[3] = 128; }), "not aligned");
  EXPECT_SAYS(after([](Case& c, auto&) { c.layout.offset[3] = 0; }), "own are given");
  EXPECT_SAYS(after([](Case& c, auto&) { c.layout.offset.pop_back(); }), "does not cover");
  EXPECT_SAYS(after([](Case& c, auto&) {
                c.set.buffers[0].pinned_region = c.set.buffers[1].pinned_region = false;
                c.layout.offset[1] = 0;
              }),
              "own are given");  // what survives the step shares with nothing
}

TEST(Verify, Instructions) {
  EXPECT_SAYS(after([](Case&, auto& i) { i[1].access.pop_back(); }),
              "writes bytes that it does not");
  EXPECT_SAYS(after([](Case&, auto& i) { i[1].access[0].bytes -= 4; }),
              "reads bytes that it does not declare");
  EXPECT_SAYS(after([](Case&, auto& i) {
                i[1].access.push_back({3, {}, 0, 256, false});
              }),
              "declares a read that no operand makes");
  EXPECT_SAYS(after([](Case&, auto& i) { i[1].accumulate = i[1].out[0].accumulate = true; }),
              "reads bytes that it does not declare");
  EXPECT_SAYS(after([](Case&, auto& i) { i[1].in[0].offset = i[1].access[0].offset = 4; }),
              "beyond its buffer");
  EXPECT_SAYS(after([](Case&, auto& i) { i[1].lane = Lane::h2d; }), "does not belong on lane h2d");
  EXPECT_SAYS(after([](Case&, auto& i) { i[0].lane = Lane::d2h; }), "wrong memory tier");
  EXPECT_SAYS(after([](Case&, auto& i) {
                i[2].out[0].dims = Dims(32);
                i[2].access[1].bytes = 128;
              }),
              "different sizes");
  EXPECT_SAYS(after([](Case&, auto& i) { i[1].workspace = operand(3, 16); }),
              "operands of one instruction overlap");
  EXPECT_SAYS(after([](Case&, auto& i) { i[1].in[0].buffer = 9; }), "names no buffer");
  EXPECT_SAYS(after([](Case&, auto& i) { i[1].waits.push_back({17}); }), "names no instruction");
  EXPECT_SAYS(after([](Case&, auto& i) { i[1].waits.push_back({1}); }), "within its own lane");
  EXPECT_SAYS(after([](Case& c, auto&) { c.set.programs[0].segments[0].trip = 1; }),
              "never issued before");
}

TEST(Verify, ReadsOfWhatIsNotThere) {
  EXPECT_SAYS(after([](Case& c, auto&) { c.set.buffers[0].scope = Scope::step; }),
              "nothing has written");
  // Another transient takes the bytes of `result` between its writer and its reader.
  Case c = streamed();
  Buffer other;
  other.name = "other";
  other.bytes = 256;
  other.pinned_region = c.set.buffers[3].pinned_region = false;
  c.set.buffers.push_back(other);
  c.layout.offset.push_back(256);
  c.layout.version_stride.push_back(256);
  Program& p = c.set.programs[0];
  p.instrs.insert(p.instrs.begin() + 2,
                  instr("thief", InstrKind::op, Lane::compute, {}, {operand(4, 64)}));
  p.instrs[1].waits = {{0}, {3}};
  p.instrs[3].waits = {{2}};
  p.segments[0].end = 4;
  const std::string text = judge(c);
  EXPECT_SAYS(text, "written last through another buffer");
  EXPECT_SAYS(text, "\"store\" against \"thief\"");
}

Instr exchange(const std::string& name, int sequence, const std::vector<int>& peers) {
  Instr i = instr(name, InstrKind::exchange, Lane::comm, {operand(0, 8)}, {});
  i.sequence = sequence;
  for (int peer : peers) {
    i.transfers.push_back({peer, true, 0});
    i.transfers.push_back({peer, false, static_cast<int32_t>(i.out.size())});
    i.out.push_back(operand(1, 8, 32 * static_cast<int64_t>(i.out.size())));
  }
  return i;
}

Program rank_program(std::vector<Instr> instrs, int trip = 1) {
  Program p;
  p.name = "train";
  p.instrs = std::move(instrs);
  p.segments.push_back({"all", trip, 0, static_cast<InstrId>(p.instrs.size())});
  return p;
}

std::string judge_ranks(const std::vector<Program>& programs) {
  std::vector<RankProgram> ranks;
  for (size_t r = 0; r < programs.size(); ++r) ranks.push_back({static_cast<int>(r), &programs[r]});
  std::string text;
  for (const Finding& f : verify_ranks(ranks)) text += describe(f) + "\n";
  return text;
}

TEST(VerifyRanks, MatchingExchangesAreClean) {
  std::vector<Program> programs;
  for (int r = 0; r < 3; ++r) {
    std::vector<int> peers;
    for (int s = 0; s < 3; ++s)
      if (s != r) peers.push_back(s);
    programs.push_back(rank_program({exchange("a", 0, peers), exchange("b", 1, peers)}, 4));
  }
  EXPECT_EQ(judge_ranks(programs), "");
  // One rank of a role alone: nothing to compare with.
  EXPECT_EQ(judge_ranks({programs[0]}), "");
}

TEST(VerifyRanks, DifferencesAreNamed) {
  const auto pair = [](const std::function<void(Program&)>& change) {
    Program a = rank_program({exchange("a", 0, {1}), exchange("b", 1, {1})});
    Program b = rank_program({exchange("a", 0, {0}), exchange("b", 1, {0})});
    change(b);
    return judge_ranks({a, b});
  };
  EXPECT_EQ(pair([](Program&) {}), "");
  EXPECT_SAYS(pair([](Program& b) { std::swap(b.instrs[0], b.instrs[1]); }), "different exchanges");
  EXPECT_SAYS(pair([](Program& b) { b.instrs[1].sequence = 5; }), "different exchanges");
  EXPECT_SAYS(pair([](Program& b) { b.instrs[0].out[0].dims = Dims(4); }),
              "disagree on the messages");
  EXPECT_SAYS(pair([](Program& b) { b.instrs[0].transfers.pop_back(); }),
              "disagree on the messages");
  EXPECT_SAYS(pair([](Program& b) { b.segments[0].trip = 2; }), "times");
  EXPECT_SAYS(pair([](Program& b) { b.instrs[0].transfers[0].peer = 1; }),
              "no exchange with rank 1");
}

// Two of eight ranks: each sends 32 bytes to all, and receives one part of a run from each.
TEST(VerifyRanks, RunsOfPeersAreJudgedPairByPair) {
  const auto program = [](int rank) {
    Instr i = instr("gather", InstrKind::exchange, Lane::comm, {operand(0, 8)}, {});
    i.sequence = 0;
    for (const auto& [begin, end] : {std::pair{0, rank}, {rank + 1, 8}}) {
      if (begin == end) continue;
      i.transfers.push_back({begin, true, 0, end - begin, 1, true});
      i.transfers.push_back({begin, false, static_cast<int32_t>(i.out.size()), end - begin, 1});
      i.out.push_back(operand(1, 8 * (end - begin), 32 * begin));
    }
    return rank_program({i});
  };
  const auto judge_two = [](const Program& a, const Program& b) {
    const std::vector<RankProgram> ranks = {{2, &a}, {5, &b}};
    std::string text;
    for (const Finding& f : verify_ranks(ranks)) text += describe(f) + "\n";
    return text;
  };
  EXPECT_EQ(judge_two(program(2), program(5)), "");
  Program b = program(5);
  b.instrs[0].transfers[0].count = 2;  // ranks 0 and 1 only
  EXPECT_SAYS(judge_two(program(2), b), "disagree on the messages");
  b = program(5);
  b.instrs[0].transfers[1].stride = 3;  // ranks 0, 3, 6, …
  EXPECT_SAYS(judge_two(program(2), b), "disagree on the messages");
  b = program(5);
  b.instrs[0].transfers[0].same = false;  // a fifth of it to each
  EXPECT_SAYS(judge_two(program(2), b), "disagree on the messages");
  b = program(5);
  b.instrs[0].transfers[0].count = 6;
  EXPECT_SAYS(judge_two(program(2), b), "no exchange with rank 5");
}

// Every pair of ranks agrees on its own order, and yet each waits for the next.
TEST(VerifyRanks, CircleOfThree) {
  const std::string text =
      judge_ranks({rank_program({exchange("x", 0, {1}), exchange("z", 0, {2})}),
                   rank_program({exchange("y", 0, {2}), exchange("x", 0, {0})}),
                   rank_program({exchange("z", 0, {0}), exchange("y", 0, {1})})});
  EXPECT_SAYS(text, "deadlock");
  EXPECT_FALSE(says(text, "different"));
  EXPECT_EQ(judge_ranks({rank_program({exchange("x", 0, {1}), exchange("z", 0, {2})}),
                         rank_program({exchange("x", 0, {0}), exchange("y", 0, {2})}),
                         rank_program({exchange("z", 0, {0}), exchange("y", 0, {1})})}),
            "");
}

}  // namespace
}  // namespace spillway
