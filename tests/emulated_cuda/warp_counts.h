// For information: how well the lanes of warps go together. Counted if SPILLWAY_EMULATED_COUNT is
// set, by source line, since it takes several times as long:
//   accesses    of warps; lanes at the same execution of one instruction make one
//   divergent   of these, made by a part of the lanes that have not ended
//   conflicts   further turns that shared memory needs because lanes want different words of a bank
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace spillway::emulated::warp_counts {

struct Line {
  uint64_t accesses = 0, divergent = 0, conflicts = 0;
};

bool wanted();
// An access of a thread of the running block.
void note(unsigned thread, const void* code, uintptr_t a, size_t bytes, bool shared);
void end_block(unsigned threads);
std::map<std::string, Line> lines();

}  // namespace spillway::emulated::warp_counts
