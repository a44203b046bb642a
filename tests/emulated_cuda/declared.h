// What an op says it touches. Kernels and library calls that an op enqueues are held to the ranges
// of its operands and its workspace, even where all memory is one arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace spillway::emulated::declared {

struct Range {
  uintptr_t begin, end;
  bool writable;
};
using Ranges = std::vector<Range>;

// While it lives, work that this thread enqueues may touch these ranges alone.
class Scope {
 public:
  explicit Scope(Ranges ranges);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
};
// Of the calling thread's innermost scope; nullptr: anything may be touched.
std::shared_ptr<const Ranges> current();

// Of the work that runs now.
void set_running(const Ranges* ranges);
bool allows(uintptr_t begin, size_t bytes, bool writes);

}  // namespace spillway::emulated::declared
