#include "runtime/arena.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"

namespace spillway {

namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kAlign = 256;
constexpr int64_t kTouchAlone = int64_t{64} << 20;  // below it, starting threads costs more

int64_t memory_limit() {
  int64_t limit = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  rlimit r{};
  if (getrlimit(RLIMIT_AS, &r) == 0 && r.rlim_cur != RLIM_INFINITY)
    limit = std::min<int64_t>(limit, static_cast<int64_t>(r.rlim_cur));
  return limit;
}

int usable_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

void touch(char* begin, char* end) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  for (volatile char* p = begin; p < end; p += page) *p = 0;
}

// In parallel, since the kernel zeroes a page at its first touch, on the core that touches it.
void first_touch(char* begin, int64_t bytes) {
  const int threads = bytes < kTouchAlone ? 1 : std::min(usable_cores(), 16);
  const int64_t share = round_up(ceil_div(bytes, threads), kHugePage);
  std::vector<std::jthread> others;
  for (int64_t at = share; at < bytes; at += share)
    others.emplace_back(touch, begin + at, begin + std::min(at + share, bytes));
  touch(begin, begin + std::min(share, bytes));
}

}  // namespace

void Arena::reserve(const char* tier, int64_t bytes) {
  map(tier, bytes);
  touch(0, usable_);
}

void Arena::touch(int64_t from, int64_t to) const { first_touch(pages_ + from, to - from); }

void Arena::map(const char* tier, int64_t bytes) {
  if (mapping_) internal_error("the {} arena is reserved a second time", tier);
  if (bytes <= 0) internal_error("a {} arena of {} bytes", tier, bytes);
  const int64_t limit = memory_limit();
  auto refuse = [&](const char* why) {
    fail(ExitCode::does_not_fit,
         "{} tier: cannot reserve {} bytes ({}); this machine's limit is {} bytes. Lower "
         "memory.{} or the model's size",
         tier, bytes, why, limit, tier);
  };
  if (bytes > limit) refuse("more than there is");
  const int64_t usable = round_up(bytes, kHugePage);
  mapped_ = usable + 2 * kHugePage;  // alignment, and a guard of at least a page at each end
  void* mapping = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) refuse(std::strerror(errno));
  const int64_t address = reinterpret_cast<int64_t>(mapping);
  char* start = reinterpret_cast<char*>(round_up(address + 1, kHugePage));
  if (mprotect(start, usable, PROT_READ | PROT_WRITE) != 0) {
    const int error = errno;
    munmap(mapping, mapped_);
    refuse(std::strerror(error));
  }
  madvise(start, usable, MADV_HUGEPAGE);  // an optimisation: kernels without it still work
  mapping_ = mapping;
  pages_ = start;
  usable_ = usable;
  begin_ = start + usable - round_up(bytes, kAlign);
  bytes_ = bytes;
}

Arena::~Arena() {
  if (mapping_) munmap(mapping_, mapped_);
}

}  // namespace spillway
