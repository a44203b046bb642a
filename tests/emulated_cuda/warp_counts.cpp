#include "warp_counts.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "block.h"
#include "report.h"

namespace spillway::emulated::warp_counts {
namespace {

constexpr size_t kBanks = 32, kBankBytes = 4, kWidest = 16;

struct Access {
  const void* code;
  uint32_t turn;  // executions of `code` by the thread before this one
  uint32_t thread;
  uintptr_t at;
  uint32_t bytes;
  bool shared;
};

struct State {
  std::vector<Access> block;
  std::array<size_t, kMaxThreads> newest{};  // of each thread, plus one
  std::unordered_map<const void*, std::array<uint32_t, kMaxThreads>> turns;
  std::unordered_map<const void*, Line> counted;
};

State& state() {
  static State* const only = new State;  // read at exit
  return *only;
}

// Lanes are served a quarter or a half at a time if they want more than a word each.
uint64_t conflicts_of(const Access* first, const Access* end) {
  const size_t together = kBanks * kBankBytes / std::max<size_t>(first->bytes, kBankBytes);
  uint64_t further = 0;
  for (size_t part = 0; part < kWarp; part += together) {
    std::array<std::set<uintptr_t>, kBanks> words;
    for (const Access* a = first; a != end; ++a) {
      const size_t lane = a->thread % kWarp;
      if (lane < part || lane >= part + together) continue;
      for (uintptr_t b = a->at; b < a->at + a->bytes; b += kBankBytes)
        words[b / kBankBytes % kBanks].insert(b / kBankBytes);
    }
    size_t most = 1;
    for (const auto& bank : words) most = std::max(most, bank.size());
    further += most - 1;
  }
  return further;
}

}  // namespace

bool wanted() {
  static const bool set = std::getenv("SPILLWAY_EMULATED_COUNT") != nullptr;
  return set;
}

void note(unsigned thread, const void* code, uintptr_t a, size_t bytes, bool shared) {
  State& s = state();
  // The compiler takes an access of 16 bytes apart; the device makes it at once.
  if (s.newest[thread] > 0) {
    Access& before = s.block[s.newest[thread] - 1];
    const size_t whole = before.bytes + bytes;
    if (before.at + before.bytes == a && before.at % kWidest + whole <= kWidest &&
        before.shared == shared && line_of(before.code) == line_of(code)) {
      before.bytes = static_cast<uint32_t>(whole);
      return;
    }
  }
  const uint32_t turn = s.turns[code][thread]++;
  s.block.push_back({code, turn, thread, a, static_cast<uint32_t>(bytes), shared});
  s.newest[thread] = s.block.size();
}

void end_block(unsigned threads) {
  State& s = state();
  const auto key = [](const Access& a) { return std::tuple(a.code, a.thread / kWarp, a.turn); };
  std::sort(s.block.begin(), s.block.end(),
            [&](const Access& a, const Access& b) { return key(a) < key(b); });
  for (size_t i = 0; i < s.block.size();) {
    size_t end = i;
    while (end < s.block.size() && key(s.block[end]) == key(s.block[i])) ++end;
    Line& line = s.counted[s.block[i].code];
    const unsigned first = s.block[i].thread / kWarp * kWarp;
    ++line.accesses;
    line.divergent += end - i < std::min(kWarp, threads - first);
    if (s.block[i].shared) line.conflicts += conflicts_of(&s.block[i], &s.block[0] + end);
    i = end;
  }
  s.block.clear();
  s.newest.fill(0);
  s.turns.clear();
}

std::map<std::string, Line> lines() {
  std::map<std::string, Line> all;
  for (const auto& [code, counted] : state().counted) {
    Line& line = all[line_of(code)];
    line.accesses += counted.accesses;
    line.divergent += counted.divergent;
    line.conflicts += counted.conflicts;
  }
  return all;
}

}  // namespace spillway::emulated::warp_counts
