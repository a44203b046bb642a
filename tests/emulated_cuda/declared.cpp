#include "declared.h"

#include <algorithm>
#include <utility>

namespace spillway::emulated::declared {
namespace {

thread_local std::vector<std::shared_ptr<const Ranges>> scopes;
const Ranges* running = nullptr;
size_t last = 0;  // the range that allowed the access before

}  // namespace

Scope::Scope(Ranges ranges) { scopes.push_back(std::make_shared<const Ranges>(std::move(ranges))); }
Scope::~Scope() { scopes.pop_back(); }

std::shared_ptr<const Ranges> current() { return scopes.empty() ? nullptr : scopes.back(); }

void set_running(const Ranges* ranges) {
  running = ranges;
  last = 0;
}

bool allows(uintptr_t begin, size_t bytes, bool writes) {
  if (!running) return true;
  const auto holds = [&](const Range& r) {
    return begin >= r.begin && begin + bytes <= r.end && (r.writable || !writes);
  };
  if (last < running->size() && holds((*running)[last])) return true;
  const auto found = std::find_if(running->begin(), running->end(), holds);
  if (found == running->end()) return false;
  last = static_cast<size_t>(found - running->begin());
  return true;
}

}  // namespace spillway::emulated::declared
