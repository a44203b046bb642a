// Every single mutation of random valid programs gets the same verdict from the verifier as from a
// brute-force oracle on the fully unrolled program.
// links: spillway_verify spillway_program
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>

#include "oracle.h"
#include "program/stages.h"
#include "program_fuzz.h"
#include "verify/verify.h"

namespace spillway {
namespace {

struct Tally {
  int harmless = 0, harmful = 0;
};

std::string text_of(const std::vector<Finding>& findings) {
  return findings.empty() ? "clean" : describe(findings[0]);
}

Program mirrored(Program p) {
  for (Instr& i : p.instrs)
    for (ProgramTransfer& t : i.transfers) t.peer = 1 - t.peer;
  return p;
}

class Mutations {
 public:
  Mutations(const fuzz::Case& base, uint64_t seed, std::map<std::string, Tally>& tally)
      : base_(base), seed_(seed), tally_(tally) {}

  void all() {
    waits();
    layout();
    offsets();
    accesses();
    exchanges();
  }

 private:
  using Change = std::function<void(fuzz::Case&)>;

  void judge(const std::string& kind, const std::string& detail, const Change& change) {
    fuzz::Case mutant = base_;
    change(mutant);
    const std::string bad = oracle::Judge(mutant.set, mutant.layout, {}).verdict();
    const auto findings = verify(mutant.set, mutant.layout, {});
    ASSERT_EQ(bad.empty(), findings.empty())
        << "seed " << seed_ << ", " << kind << " " << detail << "\noracle: " << bad
        << "\nverifier: " << text_of(findings);
    Tally& tally = tally_[kind];
    ++(bad.empty() ? tally.harmless : tally.harmful);
  }

  template <class F>
  void each_instr(F&& visit) {
    for (size_t p = 0; p < base_.set.programs.size(); ++p)
      for (size_t i = 0; i < base_.set.programs[p].instrs.size(); ++i)
        visit(p, i, base_.set.programs[p].instrs[i]);
  }

  void waits() {
    each_instr([&](size_t p, size_t i, const Instr& instr) {
      for (size_t w = 0; w < instr.waits.size(); ++w)
        judge("wait removed", fmt::format("{} {} {}", p, i, w), [&](fuzz::Case& c) {
          auto& list = c.set.programs[p].instrs[i].waits;
          list.erase(list.begin() + w);
        });
      for (int l = 0; l < kLaneCount; ++l)
        if (instr.entry_waits >> l & 1)
          judge("entry wait removed", fmt::format("{} {} {}", p, i, l),
                [&](fuzz::Case& c) { c.set.programs[p].instrs[i].entry_waits ^= 1u << l; });
    });
  }

  void layout() {
    for (size_t b = 0; b < base_.set.buffers.size(); ++b) {
      for (int64_t by : {-256, 256, 512, 128})
        judge("buffer shifted", fmt::format("{} {}", b, by),
              [&](fuzz::Case& c) { c.layout.offset[b] += by; });
      for (int fewer = 1; fewer < base_.set.buffers[b].versions; ++fewer)
        judge("versions shrunk", fmt::format("{} {}", b, fewer),
              [&](fuzz::Case& c) { c.set.buffers[b].versions -= fewer; });
    }
  }

  // The operand and what is declared for it move together: only its effect can give it away.
  void offsets() {
    each_instr([&](size_t p, size_t i, const Instr& instr) {
      for (size_t k = 0; k < instr.in.size() + instr.out.size(); ++k)
        for (int64_t by : {-64, 2, 16, 64})
          judge("operand shifted", fmt::format("{} {} {} {}", p, i, k, by), [&](fuzz::Case& c) {
            Instr& x = c.set.programs[p].instrs[i];
            ProgramOperand& o = k < x.in.size() ? x.in[k] : x.out[k - x.in.size()];
            const bool write = k >= x.in.size();
            for (Access& a : x.access)
              if (a.buffer == o.buffer && a.offset == o.offset && a.write == write &&
                  a.version.base == o.version.base && a.version.step == o.version.step)
                a.offset += by;
            o.offset += by;
          });
    });
  }

  void accesses() {
    each_instr([&](size_t p, size_t i, const Instr& instr) {
      for (size_t a = 0; a < instr.access.size(); ++a) {
        const std::string detail = fmt::format("{} {} {}", p, i, a);
        judge("access dropped", detail, [&](fuzz::Case& c) {
          auto& list = c.set.programs[p].instrs[i].access;
          list.erase(list.begin() + a);
        });
        judge("access shrunk", detail,
              [&](fuzz::Case& c) { c.set.programs[p].instrs[i].access[a].bytes -= 4; });
        judge("access shifted", detail,
              [&](fuzz::Case& c) { c.set.programs[p].instrs[i].access[a].offset += 8; });
      }
    });
  }

  // Two exchanges change places on rank 0 of two; waits follow their instruction.
  void exchanges() {
    for (size_t p = 0; p < base_.set.programs.size(); ++p) {
      const Program& program = base_.set.programs[p];
      std::vector<size_t> at;
      for (size_t i = 0; i < program.instrs.size(); ++i)
        if (program.instrs[i].kind == InstrKind::exchange) at.push_back(i);
      const Program peer = mirrored(program);
      for (size_t x = 0; x < at.size(); ++x)
        for (size_t y = 0; y < x; ++y)
          for (bool renumbered : {false, true}) {
            fuzz::Case mutant = base_;
            Program& q = mutant.set.programs[p];
            std::swap(q.instrs[at[x]], q.instrs[at[y]]);
            if (renumbered) std::swap(q.instrs[at[x]].sequence, q.instrs[at[y]].sequence);
            for (Instr& i : q.instrs)
              for (Wait& w : i.waits)
                if (w.on == static_cast<InstrId>(at[x]))
                  w.on = static_cast<InstrId>(at[y]);
                else if (w.on == static_cast<InstrId>(at[y]))
                  w.on = static_cast<InstrId>(at[x]);
            std::string bad = oracle::Judge(mutant.set, mutant.layout, {}).verdict();
            if (bad.empty()) bad = oracle::run_ranks(q, peer);
            auto findings = verify(mutant.set, mutant.layout, {});
            const RankProgram ranks[] = {{0, &q}, {1, &peer}};
            for (Finding& f : verify_ranks(ranks)) findings.push_back(std::move(f));
            ASSERT_EQ(bad.empty(), findings.empty())
                << "seed " << seed_ << ", swapped " << at[x] << " and " << at[y]
                << "\noracle: " << bad << "\nverifier: " << text_of(findings);
            Tally& tally = tally_["exchanges swapped"];
            ++(bad.empty() ? tally.harmless : tally.harmful);
          }
    }
  }

  const fuzz::Case& base_;
  uint64_t seed_;
  std::map<std::string, Tally>& tally_;
};

// For loops that must end with the first failure.
bool failed() { return testing::Test::HasFatalFailure(); }

void expect_clean(const fuzz::Case& c, uint64_t seed) {
  ASSERT_EQ(oracle::Judge(c.set, c.layout, {}).verdict(), "") << "seed " << seed;
  ASSERT_EQ(text_of(verify(c.set, c.layout, {})), "clean") << "seed " << seed;
  for (const Program& p : c.set.programs) {
    const Program peer = mirrored(p);
    const RankProgram ranks[] = {{0, &p}, {1, &peer}};
    ASSERT_EQ(oracle::run_ranks(p, peer), "") << "seed " << seed;
    ASSERT_EQ(text_of(verify_ranks(ranks)), "clean") << "seed " << seed;
  }
}

void print(const std::map<std::string, Tally>& tally, Tally& total) {
  for (const auto& [kind, t] : tally) {
    fmt::print("{:20} {:6} harmful {:6} harmless\n", kind, t.harmful, t.harmless);
    total.harmful += t.harmful;
    total.harmless += t.harmless;
  }
  fmt::print("{:20} {:6} harmful {:6} harmless\n", "all", total.harmful, total.harmless);
}

TEST(VerifyMutation, SynchronisedPrograms) {
  const uint64_t first = std::random_device{}() % 1000000;
  fmt::print("seeds from {}\n", first);
  std::map<std::string, Tally> tally;
  for (uint64_t seed = first; seed < first + 120; ++seed) {
    fuzz::Case c = fuzz::Generator(seed).make();
    synchronise(c.set, c.layout);
    expect_clean(c, seed);
    if (failed()) return;
    Mutations(c, seed, tally).all();
    if (failed()) return;
  }
  Tally total;
  print(tally, total);
  EXPECT_GE(total.harmful, 1000);
  EXPECT_GE(tally["wait removed"].harmful, 100);
  EXPECT_GE(tally["entry wait removed"].harmful, 50);
  EXPECT_GE(tally["buffer shifted"].harmful, 100);
  EXPECT_GE(tally["buffer shifted"].harmless, 1);
  EXPECT_GE(tally["versions shrunk"].harmful, 10);
  EXPECT_GE(tally["operand shifted"].harmful, 100);
  EXPECT_GE(tally["operand shifted"].harmless, 10);
  EXPECT_GE(tally["access dropped"].harmful, 100);
  EXPECT_GE(tally["exchanges swapped"].harmful, 10);
}

// Waits from which nothing can be taken, found without the synchroniser.
TEST(VerifyMutation, MinimalWaits) {
  const uint64_t first = std::random_device{}() % 1000000;
  fmt::print("seeds from {}\n", first);
  std::map<std::string, Tally> tally;
  int made = 0;
  for (uint64_t seed = first; made < 12; ++seed) {
    fuzz::Generator generator(seed);
    fuzz::Case c = generator.make();
    int events = 0;
    for (const Program& p : c.set.programs)
      for (const Segment& s : p.segments) events += s.trip * (s.end - s.begin);
    if (events > 60) continue;
    ++made;
    fuzz::wait_for_everything(c.set);
    fuzz::thin_out(c.set, c.layout, generator);
    expect_clean(c, seed);
    if (failed()) return;
    Mutations(c, seed, tally).all();
    if (failed()) return;
  }
  Tally total;
  print(tally, total);
  EXPECT_GE(total.harmful, 100);
  EXPECT_EQ(tally["wait removed"].harmless, 0);
}

}  // namespace
}  // namespace spillway
