#include "memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <string>

#include "report.h"

namespace spillway::emulated {
namespace {

void* reserve(uintptr_t at, size_t bytes, int protection) {
  const int fixed = at ? MAP_FIXED_NOREPLACE : 0;
  void* p = mmap(reinterpret_cast<void*>(at), bytes, protection,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
  if (p == MAP_FAILED) give_up(fmt::format("no {} bytes of address space", bytes));
  return p;
}

struct Space {
  Space() {
    // Readable and writable as a whole: a kernel that leaves its allocation is reported, not
    // killed.
    reserve(kManagedBegin, kDeviceSpace, PROT_READ | PROT_WRITE);
    reserve(kPinnedBegin, kPinnedSpace, PROT_NONE);
    written = static_cast<uint64_t*>(reserve(0, kDeviceSpace / 8, PROT_READ | PROT_WRITE));
  }
  std::map<uintptr_t, Allocation> allocations;
  uintptr_t next_device = kManagedBegin + kPageBytes, next_pinned = kPinnedBegin + kPageBytes;
  uint64_t* written;  // a bit a byte
};

Space& space() {
  static Space* const only = new Space;
  return *only;
}

void* take(uintptr_t& next, uintptr_t end, size_t bytes) {
  const size_t pages = (bytes + kPageBytes - 1) / kPageBytes + 1;  // the last stays unused
  if ((end - next) / kPageBytes < pages) return nullptr;
  const uintptr_t begin = next;
  next += pages * kPageBytes;
  space().allocations[begin] = {begin, bytes, false};
  return reinterpret_cast<void*>(begin);
}

// Calls f(word, mask) for the bits of [begin, begin + bytes).
template <class F>
void for_bits(uintptr_t begin, size_t bytes, F f) {
  uint64_t* const words = space().written;
  uintptr_t bit = begin - kManagedBegin;
  while (bytes > 0) {
    const size_t low = bit % 64, count = std::min<size_t>(bytes, 64 - low);
    const uint64_t mask = (count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << low;
    f(words[bit / 64], mask);
    bit += count;
    bytes -= count;
  }
}

}  // namespace

void* allocate_device(size_t bytes) {
  return take(space().next_device, kManagedBegin + kDeviceSpace, bytes);
}

void* reserve_pinned(size_t bytes) {
  return take(space().next_pinned, kPinnedBegin + kPinnedSpace, bytes);
}

bool release(void* p) {
  const auto found = space().allocations.find(address_of(p));
  if (found == space().allocations.end() || found->second.freed) return false;
  found->second.freed = true;
  if (is_device(address_of(p))) {
    madvise(p, found->second.bytes, MADV_DONTNEED);
    written::clear(found->second.begin, found->second.bytes);
  }
  return true;
}

const Allocation* allocation_near(uintptr_t a) {
  const auto above = space().allocations.upper_bound(a);
  return above == space().allocations.begin() ? nullptr : &std::prev(above)->second;
}

std::string describe_address(uintptr_t a) {
  const Allocation* near = allocation_near(a);
  if (!near) return fmt::format("{:#x}, which no allocation holds", a);
  const uintptr_t offset = a - near->begin;
  const char* memory = is_device(a) ? "device" : "pinned";
  if (offset < near->bytes)
    return fmt::format("byte {} of the {} {} bytes at {:#x}{}", offset, near->bytes, memory,
                       near->begin, near->freed ? " (freed)" : "");
  return fmt::format("{} bytes beyond the {} {} bytes at {:#x}", offset - near->bytes, near->bytes,
                     memory, near->begin);
}

void written::set(uintptr_t begin, size_t bytes) {
  for_bits(begin, bytes, [](uint64_t& word, uint64_t mask) { word |= mask; });
}

void written::clear(uintptr_t begin, size_t bytes) {
  for_bits(begin, bytes, [](uint64_t& word, uint64_t mask) { word &= ~mask; });
}

bool written::all(uintptr_t begin, size_t bytes) {
  bool all = true;
  for_bits(begin, bytes, [&](uint64_t& word, uint64_t mask) { all &= (word & mask) == mask; });
  return all;
}

bool written::at(uintptr_t a) { return written::all(a, 1); }

void written::for_each_hole(uintptr_t begin, size_t bytes,
                            const std::function<void(uintptr_t, uintptr_t)>& hole) {
  if (written::all(begin, bytes)) return;
  uintptr_t a = begin;
  const uintptr_t end = begin + bytes;
  while (a < end) {
    while (a < end && written::at(a)) ++a;
    const uintptr_t first = a;
    while (a < end && !written::at(a)) ++a;
    if (first < a) hole(first, a);
  }
}

}  // namespace spillway::emulated
