#include "shadow.h"

#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <vector>

#include "block.h"
#include "declared.h"
#include "history.h"
#include "memory.h"
#include "report.h"
#include "warp_counts.h"

namespace spillway::emulated::shadow {
namespace {

// `interval` counts the barriers of all blocks of all launches, so that one number tells launch,
// block and the time between two barriers: what is below the first interval of the launch is older
// than the launch.
struct Cell {
  uint32_t interval = 0;
  uint16_t warp_interval = 0;  // __syncwarps of its warp since the block began
  uint16_t thread = 0;         // and flags
};
constexpr uint16_t kThread = 0x03FF;
constexpr uint16_t kSeveralLanes = 0x0400;  // reads by several lanes of one warp
constexpr uint16_t kSeveralWarps = 0x0800;
constexpr uint16_t kOtherBlocks = 0x1000;  // earlier blocks of this launch read it too
constexpr uint16_t kInFlight = 0x2000;     // written by a cp.async that nobody waited for
constexpr uint16_t kAtomic = 0x4000;

// The cells of one page of device or pinned memory, during one launch.
struct Page {
  uint64_t launch = 0;
  uintptr_t begin = 0;
  uintptr_t low = 0, high = 0;                                         // what is allocated of it
  uint64_t read[kPageBytes / 64] = {}, written[kPageBytes / 64] = {};  // a bit a byte
  Cell reads[kPageBytes], writes[kPageBytes];
};

struct Region {  // shared memory, dynamic or static
  uintptr_t begin = 0;
  size_t bytes = 0, usable = 0;
  std::vector<Cell> reads, writes;
};

constexpr unsigned kOwnLane = kWarp;

struct State {
  uint64_t launch = 0;
  uint32_t interval = 0, launch_first = 0, block_first = 0;
  uint16_t warp_interval[kMaxThreads / kWarp] = {};
  unsigned lane = kOwnLane;  // whose access is checked
  Region dynamic, fixed;
  Page** table = nullptr;  // a pointer for every page of the managed space
  std::vector<std::unique_ptr<Page>> pages;
  size_t used = 0;
};
State state;

void next_interval() {
  if (++state.interval == 0) give_up("more than 2^32 barriers in one run");
}

// The executable's block of thread-local storage on this thread: __shared__ arrays are there.
void find_fixed_shared() {
  struct Found {
    uintptr_t begin = 0;
    size_t bytes = 0;
  } found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        for (int i = 0; i < info->dlpi_phnum; ++i)
          if (info->dlpi_phdr[i].p_type == PT_TLS)
            *static_cast<Found*>(out) = {address_of(info->dlpi_tls_data),
                                         info->dlpi_phdr[i].p_memsz};
        return 1;  // the first is the executable
      },
      &found);
  state.fixed.begin = found.begin;
  state.fixed.bytes = state.fixed.usable = found.bytes;
  state.fixed.reads.resize(found.bytes);
  state.fixed.writes.resize(found.bytes);
}

Page& page_of(uintptr_t a) {
  if (!state.table) {
    void* table = mmap(nullptr, kManagedBytes / kPageBytes * sizeof(Page*), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (table == MAP_FAILED) give_up("no address space for the shadow's page table");
    state.table = static_cast<Page**>(table);
  }
  Page*& entry = state.table[(a - kManagedBegin) / kPageBytes];
  const uintptr_t begin = a & ~uintptr_t{kPageBytes - 1};
  if (entry && entry->launch == state.launch && entry->begin == begin) return *entry;
  if (state.used == state.pages.size()) state.pages.push_back(std::make_unique<Page>());
  Page& page = *state.pages[state.used++];
  page.launch = state.launch;
  page.begin = begin;
  std::fill(std::begin(page.read), std::end(page.read), 0);
  std::fill(std::begin(page.written), std::end(page.written), 0);
  const Allocation* near = allocation_near(begin + kPageBytes - 1);
  page.low = page.high = begin;
  if (near && !near->freed && near->end() > begin) {
    page.low = std::max(begin, near->begin);
    page.high = std::min(begin + kPageBytes, near->end());
  }
  entry = &page;
  return page;
}

enum class Kind { read, write, atomic };

const char* verb(Kind kind) { return kind == Kind::read ? "reads" : "writes"; }

unsigned my_warp() { return running_thread()->warp; }
uint16_t me() {
  const unsigned lane = state.lane == kOwnLane ? running_thread()->lane : state.lane;
  return static_cast<uint16_t>(my_warp() * kWarp + lane);
}

Cell cell_of_now() { return {state.interval, state.warp_interval[my_warp()], me()}; }

// Whether the access `before` is not ordered before the running thread's access now. `floor`:
// what is older lies before the launch (device memory) or the block (shared memory).
bool concurrent(const Cell& before, uint32_t floor) {
  if (before.interval < floor) return false;
  if (before.interval < state.block_first) return true;  // another block
  if (before.thread & kOtherBlocks) return true;
  if (before.interval != state.interval) return false;
  if (before.thread & kSeveralWarps) return true;
  const uint16_t thread = before.thread & kThread;
  if (thread / kWarp != my_warp()) return true;
  if (before.warp_interval != state.warp_interval[thread / kWarp]) return false;
  return thread != me() || (before.thread & kSeveralLanes);
}

// The reads of a byte so far, with that of the running thread.
Cell with_reader(const Cell& before, uint32_t floor) {
  Cell now = cell_of_now();
  if (before.interval < floor) return now;
  if (before.interval < state.block_first) {
    now.thread |= kOtherBlocks;
    return now;
  }
  now.thread |= before.thread & kOtherBlocks;
  if (before.interval != state.interval) return now;
  now.thread |= before.thread & kSeveralWarps;
  const uint16_t thread = before.thread & kThread;
  if (thread / kWarp != my_warp()) {
    now.thread |= kSeveralWarps;
  } else if (before.warp_interval == now.warp_interval) {
    now.thread |= before.thread & kSeveralLanes;
    if (thread != me()) now.thread |= kSeveralLanes;
  }
  return now;
}

std::string accessor(const Cell& cell) {
  if (cell.interval < state.block_first || (cell.thread & kOtherBlocks)) return "another block";
  return fmt::format("{}thread {}",
                     cell.thread & (kSeveralLanes | kSeveralWarps) ? "threads with " : "",
                     cell.thread & kThread);
}

void tell_race(Kind kind, const Cell& other, bool other_writes, const std::string& place,
               const void* code) {
  report("race", code, "{} {} {} at {}, which {} {} with no barrier between", where_running(),
         verb(kind), place, line_of(code), accessor(other), other_writes ? "wrote" : "read");
}

// Checks one byte and notes the access. False: reported.
bool check_byte(Cell& read, Cell& write, uint32_t floor, Kind kind, const char* memory, uintptr_t a,
                const void* code) {
  const auto place = [&] {
    return is_managed(a) ? describe_address(a)
                         : fmt::format("byte {} of {}",
                                       a - (a - state.dynamic.begin < state.dynamic.bytes
                                                ? state.dynamic.begin
                                                : state.fixed.begin),
                                       memory);
  };
  if ((write.thread & kInFlight) && write.interval >= floor) {
    report("unfinished cp.async", code,
           "{} {} {} at {} while a cp.async of thread {} that nobody waited for may write it",
           where_running(), verb(kind), place(), line_of(code), write.thread & kThread);
    write.thread &= static_cast<uint16_t>(~kInFlight);
    return false;
  }
  bool good = true;
  if (concurrent(write, floor) && !(kind == Kind::atomic && (write.thread & kAtomic))) {
    tell_race(kind, write, true, place(), code);
    good = false;
  } else if (kind != Kind::read && concurrent(read, floor)) {
    tell_race(kind, read, false, place(), code);
    good = false;
  }
  if (kind == Kind::read) {
    read = good ? with_reader(read, floor) : cell_of_now();
  } else {
    write = cell_of_now();
    if (kind == Kind::atomic) write.thread |= kAtomic;
    if (!good) read = {};
  }
  return good;
}

bool uniform(const Cell* cells, size_t count) {
  const uint64_t first = std::bit_cast<uint64_t>(cells[0]);
  uint64_t difference = 0;
  for (size_t i = 1; i < count; ++i) difference |= std::bit_cast<uint64_t>(cells[i]) ^ first;
  return difference == 0;
}

// The same for neighbours. Most accesses meet bytes of one past, so that one check does for all.
bool check_bytes(Cell* reads, Cell* writes, size_t count, uint32_t floor, Kind kind,
                 const char* memory, uintptr_t a, const void* code) {
  if (kind != Kind::atomic) {  // what this thread did a moment ago says nothing new
    const Cell* own = kind == Kind::read ? reads : writes;
    const uint64_t now = std::bit_cast<uint64_t>(cell_of_now());
    uint64_t difference = 0;
    for (size_t i = 0; i < count; ++i) difference |= std::bit_cast<uint64_t>(own[i]) ^ now;
    if (difference == 0) return true;
  }
  if (uniform(reads, count) && uniform(writes, count)) {
    if (!check_byte(reads[0], writes[0], floor, kind, memory, a, code)) return false;
    if (kind == Kind::read)
      std::fill(reads + 1, reads + count, reads[0]);
    else
      std::fill(writes + 1, writes + count, writes[0]);
    return true;
  }
  for (size_t i = 0; i < count; ++i)
    if (!check_byte(reads[i], writes[i], floor, kind, memory, a + i, code)) return false;
  return true;
}

void in_region(Region& region, const char* memory, uintptr_t a, size_t bytes, Kind kind,
               const void* code) {
  const size_t offset = a - region.begin;
  if (offset + bytes > region.usable) {
    report("out of bounds", code, "{} {} {} bytes at {} of {} bytes of {} at {}", where_running(),
           verb(kind), bytes, offset, region.usable, memory, line_of(code));
    return;
  }
  if (kind != Kind::write)
    for (size_t i = 0; i < bytes; ++i)
      if (region.writes[offset + i].interval < state.block_first) {
        report("uninitialised", code, "{} reads byte {} of {}, which its block never wrote, at {}",
               where_running(), offset + i, memory, line_of(code));
        return;
      }
  check_bytes(&region.reads[offset], &region.writes[offset], bytes, state.block_first, kind, memory,
              a, code);
}

void mark(uint64_t (&bits)[kPageBytes / 64], size_t first, size_t count) {
  for (size_t i = first; i < first + count; ++i) bits[i / 64] |= uint64_t{1} << (i % 64);
}

void in_page(uintptr_t a, size_t bytes, Kind kind, const void* code) {
  Page& page = page_of(a);
  if (a < page.low || a + bytes > page.high) {
    const uintptr_t first = a < page.low || a >= page.high ? a : page.high;
    const Allocation* near = allocation_near(a);
    const bool freed = near && near->freed && a < near->end();
    report(freed ? "use after free" : "out of bounds", code, "{} {} {} bytes from {} at {}: {}",
           where_running(), verb(kind), bytes, reinterpret_cast<void*>(a), line_of(code),
           describe_address(first));
    return;
  }
  if (!declared::allows(a, bytes, kind != Kind::read))
    report("undeclared access", code, "{} {} {} at {}, which is no operand of '{}' for that",
           where_running(), verb(kind), describe_address(a), line_of(code),
           history::current_name());
  const size_t offset = a - page.begin;
  const bool device = is_device(a);
  if (kind != Kind::write && device && !written::all(a, bytes)) {
    uintptr_t hole = a;
    while (written::at(hole)) ++hole;
    report("uninitialised", code, "{} reads {} at {}, which nothing wrote", where_running(),
           describe_address(hole), line_of(code));
    written::set(a, bytes);
  }
  if (kind != Kind::write) mark(page.read, offset, bytes);
  if (kind != Kind::read) mark(page.written, offset, bytes);
  check_bytes(&page.reads[offset], &page.writes[offset], bytes, state.launch_first, kind,
              "device memory", a, code);
  if (kind != Kind::read && device) written::set(a, bytes);
}

// Stack, argument block and constants may be read without a check; the rest is the host's.
bool may_touch(uintptr_t a) {
  const uintptr_t stack = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  if (a - (stack - (64 << 10)) < (192u << 10)) return true;
  const Launch* launch = running_launch();
  if (a - address_of(launch->arguments) < launch->argument_bytes) return true;
  static const struct Image {
    uintptr_t begin = 0, end = 0;
  } image = [] {
    Image found;
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* out) {
          Image& all = *static_cast<Image*>(out);
          all.begin = info->dlpi_addr;
          for (int i = 0; i < info->dlpi_phnum; ++i)
            if (info->dlpi_phdr[i].p_type == PT_LOAD)
              all.end = std::max<uintptr_t>(all.end, info->dlpi_addr + info->dlpi_phdr[i].p_vaddr +
                                                         info->dlpi_phdr[i].p_memsz);
          return 1;
        },
        &found);
    return found;
  }();
  return a - image.begin < image.end - image.begin;
}

void count(uintptr_t a, size_t bytes, const void* code) {
  const bool shared =
      a - state.dynamic.begin < state.dynamic.bytes || a - state.fixed.begin < state.fixed.bytes;
  if (shared || is_managed(a)) warp_counts::note(me(), code, a, bytes, shared);
}

void access(const void* p, size_t bytes, Kind kind, const void* code) {
  if (!on_device || !running_thread()) return;
  uintptr_t a = address_of(p);
  if (warp_counts::wanted()) count(a, bytes, code);
  if (is_managed(a)) {
    while (bytes > 0) {
      const size_t part = std::min<size_t>(bytes, kPageBytes - a % kPageBytes);
      in_page(a, part, kind, code);
      a += part;
      bytes -= part;
    }
    return;
  }
  if (a - state.dynamic.begin < state.dynamic.bytes) {
    in_region(state.dynamic, "dynamic shared memory", a, bytes, kind, code);
  } else if (a - state.fixed.begin < state.fixed.bytes) {
    in_region(state.fixed, "static shared memory", a, bytes, kind, code);
  } else if (!may_touch(a)) {
    report("illegal address", code, "{} {} {} at {}, which is not memory of the device",
           where_running(), verb(kind), p, line_of(code));
    abandon_block();
  }
}

template <class F>
void for_each_run(const uint64_t (&bits)[kPageBytes / 64], F run) {
  constexpr size_t kNone = ~size_t{0};
  size_t first = kNone;
  for (size_t w = 0; w < kPageBytes / 64; ++w) {
    if (bits[w] == 0 || bits[w] == ~uint64_t{0}) {
      if (bits[w] && first == kNone) first = w * 64;
      if (!bits[w] && first != kNone) run(std::exchange(first, kNone), w * 64);
      continue;
    }
    for (size_t i = 0; i < 64; ++i) {
      const bool set = bits[w] >> i & 1;
      if (set && first == kNone) first = w * 64 + i;
      if (!set && first != kNone) run(std::exchange(first, kNone), w * 64 + i);
    }
  }
  if (first != kNone) run(first, kPageBytes);
}

struct Run {
  uintptr_t begin, end;
};

void append(std::vector<Run>& runs, uintptr_t begin, uintptr_t end) {
  if (!runs.empty() && runs.back().end == begin) {
    runs.back().end = end;
  } else {
    runs.push_back({begin, end});
  }
}

}  // namespace

void begin_kernel(unsigned char* shared, size_t shared_bytes) {
  if (state.dynamic.bytes == 0) {
    state.dynamic.bytes = kMaxSharedBytes;
    state.dynamic.reads.resize(kMaxSharedBytes);
    state.dynamic.writes.resize(kMaxSharedBytes);
  }
  state.dynamic.begin = address_of(shared);
  state.dynamic.usable = shared_bytes;
  find_fixed_shared();
  ++state.launch;
  state.used = 0;
  next_interval();
  state.launch_first = state.block_first = state.interval;
}

void end_kernel() {
  std::vector<Page*> pages;
  for (size_t i = 0; i < state.used; ++i) pages.push_back(state.pages[i].get());
  std::sort(pages.begin(), pages.end(),
            [](const Page* a, const Page* b) { return a->begin < b->begin; });
  std::vector<Run> reads, writes;
  for (const Page* page : pages) {
    for_each_run(page->read, [&](size_t first, size_t end) {
      append(reads, page->begin + first, page->begin + end);
    });
    for_each_run(page->written, [&](size_t first, size_t end) {
      append(writes, page->begin + first, page->begin + end);
    });
  }
  for (const Run& run : reads) history::read(run.begin, run.end - run.begin);
  for (const Run& run : writes) history::write(run.begin, run.end - run.begin);
}

void begin_block() {
  next_interval();
  state.block_first = state.interval;
  std::fill(std::begin(state.warp_interval), std::end(state.warp_interval), 0);
}

void barrier_passed() {
  next_interval();
  std::fill(std::begin(state.warp_interval), std::end(state.warp_interval), 0);
}

void warp_synchronised(unsigned warp) {
  if (++state.warp_interval[warp] == 0) give_up("more than 2^16 __syncwarps between two barriers");
}

void read(const void* p, size_t bytes, const void* code) { access(p, bytes, Kind::read, code); }
void write(const void* p, size_t bytes, const void* code) { access(p, bytes, Kind::write, code); }
void atomic(const void* p, size_t bytes, const void* code) { access(p, bytes, Kind::atomic, code); }

void read_for_lane(unsigned lane, const void* p, size_t bytes, const void* code) {
  state.lane = lane;
  access(p, bytes, Kind::read, code);
  state.lane = kOwnLane;
}

void begin_copy(void* shared, size_t bytes, const void* code) {
  const size_t offset = address_of(shared) - state.dynamic.begin;
  if (offset >= state.dynamic.bytes) {
    report("illegal address", code,
           "{}: the target of a cp.async at {} is not dynamic shared memory", where_running(),
           line_of(code));
    abandon_block();
  }
  access(shared, bytes, Kind::write, code);
  if (offset + bytes > state.dynamic.usable) return;
  for (size_t i = 0; i < bytes; ++i) state.dynamic.writes[offset + i].thread |= kInFlight;
}

void end_copy(void* shared, size_t bytes, const void*) {
  const size_t offset = address_of(shared) - state.dynamic.begin;
  if (offset + bytes > state.dynamic.usable) return;
  for (size_t i = 0; i < bytes; ++i) state.dynamic.writes[offset + i] = cell_of_now();
}

}  // namespace spillway::emulated::shadow
