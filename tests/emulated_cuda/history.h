// Who wrote and read every byte of device and pinned memory last, in work of streams; kept for
// ranges, with all reads since the last write. An access that is not ordered after what is kept is
// a missing wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "clock.h"

namespace spillway::emulated::history {

// The accesses that follow are those of work number `clock.count[actor]` of `actor`, which knows
// `clock`, which stays valid until `end`. `name` and the source of `code` (nullptr: none) stand in
// reports.
void begin(int actor, const Clock& clock, const std::string& name, const void* code);
void end();
bool active();
std::string current_name();

void read(uintptr_t begin, size_t bytes);
void write(uintptr_t begin, size_t bytes);
// Forgets a range that was freed.
void forget(uintptr_t begin, size_t bytes);

}  // namespace spillway::emulated::history
