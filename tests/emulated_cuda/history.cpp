#include "history.h"

#include <iterator>
#include <map>
#include <vector>

#include "memory.h"
#include "report.h"

namespace spillway::emulated::history {
namespace {

struct Work {
  int actor = -1;  // -1: none
  uint32_t count = 0, name = 0;
  bool operator==(const Work&) const = default;
};

struct Range {
  uintptr_t end = 0;
  Work write;
  std::vector<Work> reads;  // since that write; none known to another
  bool same(const Range& other) const { return write == other.write && reads == other.reads; }
};

using Ranges = std::map<uintptr_t, Range>;  // by begin; they do not overlap

struct Name {
  std::string text;
  const void* code;
  bool operator==(const Name&) const = default;
  std::string with_source() const { return code ? text + " " + source_of(code) : text; }
};

struct State {
  Ranges ranges;
  std::vector<Name> names;
  int actor = -1;
  const Clock* clock = nullptr;
  Work now;
};
State& state() {
  static State* const only = new State;
  return *only;
}

bool ordered(const Work& before) {
  return before.actor < 0 || state().clock->knows(before.actor, before.count);
}

void tell(const Work& before, const char* earlier, const char* later, uintptr_t a, size_t bytes) {
  const State& s = state();
  report(
      "missing wait", nullptr,
      "{} bytes at {}: '{}' (stream {}) {} them and does not wait for '{}' (stream {}), which {} "
      "them",
      bytes, describe_address(a), s.names[s.now.name].with_source(), s.now.actor, later,
      s.names[before.name].with_source(), before.actor, earlier);
}

// Makes `a` a boundary between ranges.
void split(uintptr_t a) {
  Ranges& ranges = state().ranges;
  auto after = ranges.upper_bound(a);
  if (after == ranges.begin()) return;
  auto in = std::prev(after);
  if (in->first == a || in->second.end <= a) return;
  Range right = in->second;
  in->second.end = a;
  ranges.emplace_hint(after, a, std::move(right));
}

void merge(uintptr_t begin, uintptr_t end) {
  Ranges& ranges = state().ranges;
  auto at = ranges.lower_bound(begin);
  if (at != ranges.begin()) --at;
  while (at != ranges.end() && at->first <= end) {
    const auto next = std::next(at);
    if (next != ranges.end() && next->first == at->second.end && at->second.same(next->second)) {
      at->second.end = next->second.end;
      ranges.erase(next);
    } else {
      at = next;
    }
  }
}

// Calls visit(range's begin, range) for ranges that cover [begin, begin + bytes) exactly.
template <class F>
void visit(uintptr_t begin, size_t bytes, F f) {
  Ranges& ranges = state().ranges;
  const uintptr_t end = begin + bytes;
  split(begin);
  split(end);
  uintptr_t a = begin;
  auto at = ranges.lower_bound(begin);
  while (a < end) {
    if (at == ranges.end() || at->first > a) {
      const uintptr_t next = at == ranges.end() ? end : std::min(end, at->first);
      at = ranges.emplace_hint(at, a, Range{next, {}, {}});
    }
    f(at->first, at->second);
    a = at->second.end;
    ++at;
  }
  merge(begin, end);
}

}  // namespace

void begin(int actor, const Clock& clock, const std::string& text, const void* code) {
  const Name name{text, code};
  State& s = state();
  s.actor = actor;
  s.clock = &clock;
  if (s.names.empty() || s.names.back() != name) s.names.push_back(name);
  s.now = {actor, clock.count[actor], static_cast<uint32_t>(s.names.size() - 1)};
}

void end() { state().clock = nullptr; }
bool active() { return state().clock != nullptr; }

std::string current_name() {
  const State& s = state();
  return s.clock ? s.names[s.now.name].with_source() : "no work";
}

void read(uintptr_t begin, size_t bytes) {
  const Work now = state().now;
  Work told;
  visit(begin, bytes, [&](uintptr_t a, Range& range) {
    if (!ordered(range.write) && !(told == range.write)) {
      tell(range.write, "wrote", "reads", a, range.end - a);
      told = range.write;
    }
    std::erase_if(range.reads, ordered);
    range.reads.push_back(now);
  });
}

void write(uintptr_t begin, size_t bytes) {
  const Work now = state().now;
  Work told;
  visit(begin, bytes, [&](uintptr_t a, Range& range) {
    const auto check = [&](const Work& before, const char* earlier) {
      if (ordered(before) || told == before) return;
      tell(before, earlier, "writes", a, range.end - a);
      told = before;
    };
    check(range.write, "wrote");
    for (const Work& before : range.reads) check(before, "read");
    range.write = now;
    range.reads.clear();
  });
}

void forget(uintptr_t begin, size_t bytes) {
  split(begin);
  split(begin + bytes);
  Ranges& ranges = state().ranges;
  ranges.erase(ranges.lower_bound(begin), ranges.lower_bound(begin + bytes));
}

}  // namespace spillway::emulated::history
