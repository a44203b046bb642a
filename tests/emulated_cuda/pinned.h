// Pinned host memory: every page has two mappings, the host's and the device's view (memory.h).
// While work that reads a range is under way the host may not write it, and while work that writes
// it is under way the host may not look at it: the host's pages are protected, and a touch is
// reported. Bytes beside such a range, on the same page, stay usable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "clock.h"

namespace spillway::emulated::pinned {

// New pages, seen by host and device. nullptr: no memory.
void* allocate(size_t bytes);
bool free(void* host);
// Makes pages of the caller pinned, contents kept. False: already pinned, or not whole pages.
bool enroll(void* host, size_t bytes);
bool withdraw(void* host);
int64_t bytes_in_use();

// The device's view of `host`; 0 if it is not pinned.
uintptr_t view_of(uintptr_t host);
// Bytes of the pinned range from `host` on; 0 if it is not pinned.
size_t bytes_from(uintptr_t host);

// Work number `id` will read or write a range; it stays protected until the host learns that the
// work has run.
void issued(uint64_t id, uintptr_t host, size_t bytes, bool writes, const std::string& name);
// Whether work that has not run yet, or not to the host's knowledge, writes any of it.
bool being_written(uintptr_t host, size_t bytes);
void executed(uint64_t id, int actor, uint32_t count);
void release(const Clock& host);
// Pages that a legal access beside a range opened.
void protect_again();

}  // namespace spillway::emulated::pinned
