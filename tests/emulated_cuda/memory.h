// The address space of the emulated device. Device memory and the device's view of pinned host
// memory are two reserved ranges; addresses are never used twice, so that a use after free is told
// from a use of what came next. Allocations start at a page and lie at least a page apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace spillway::emulated {

constexpr size_t kPageBytes = 4096;
constexpr uintptr_t kManagedBegin = 0x200000000000;
constexpr size_t kDeviceSpace = size_t{64} << 30, kPinnedSpace = size_t{64} << 30;
constexpr uintptr_t kPinnedBegin = kManagedBegin + kDeviceSpace;
constexpr size_t kManagedBytes = kDeviceSpace + kPinnedSpace;

struct Allocation {
  uintptr_t begin = 0;
  size_t bytes = 0;
  bool freed = false;
  uintptr_t end() const { return begin + bytes; }
};

inline uintptr_t address_of(const void* p) { return reinterpret_cast<uintptr_t>(p); }
inline bool is_managed(uintptr_t a) { return a - kManagedBegin < kManagedBytes; }
inline bool is_device(uintptr_t a) { return a - kManagedBegin < kDeviceSpace; }

// nullptr: the address space is used up. Contents are undefined and count as never written.
void* allocate_device(size_t bytes);
// Reserves a range of the pinned view; whoever calls maps it. Counts as written.
void* reserve_pinned(size_t bytes);
// False: `p` is not the begin of a live allocation.
bool release(void* p);

// The allocation with the highest begin at or below `a`, freed ones too; or nullptr.
const Allocation* allocation_near(uintptr_t a);
// "+128 of the 4096 bytes at 0x2…" or "outside all allocations; the nearest …".
std::string describe_address(uintptr_t a);

// Which bytes of device memory something has written.
namespace written {
void set(uintptr_t begin, size_t bytes);
void clear(uintptr_t begin, size_t bytes);
bool all(uintptr_t begin, size_t bytes);
bool at(uintptr_t a);
// Calls `hole(begin, end)` for every maximal unwritten run in [begin, begin + bytes).
void for_each_hole(uintptr_t begin, size_t bytes,
                   const std::function<void(uintptr_t, uintptr_t)>& hole);
}  // namespace written

}  // namespace spillway::emulated
