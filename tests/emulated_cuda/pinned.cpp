#include "pinned.h"

#include <execinfo.h>
#include <fmt/format.h>
#include <link.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "memory.h"
#include "report.h"

namespace spillway::emulated::pinned {
namespace {

struct Chunk {
  uintptr_t host = 0, view = 0;
  size_t bytes = 0;
  bool enrolled = false;
};

struct Flight {  // work that uses a range
  uint64_t id;
  uintptr_t host;
  size_t bytes;
  bool writes;
  std::string name;
  int actor = -1;  // set when it has run
  uint32_t count = 0;
};

struct Uses {
  int reads = 0, writes = 0;
};

struct State {
  std::mutex lock;  // held briefly, never while pinned memory is touched
  std::map<uintptr_t, Chunk> chunks;
  std::vector<Flight> flights;
  std::map<uintptr_t, Uses> pages;
  std::vector<uintptr_t> opened;
  int64_t bytes = 0;
  struct sigaction before {};
};

State& state() {
  static State* const only = new State;
  return *only;
}

const Chunk* chunk_of(uintptr_t host) {
  const auto above = state().chunks.upper_bound(host);
  if (above == state().chunks.begin()) return nullptr;
  const Chunk& chunk = std::prev(above)->second;
  return host - chunk.host < chunk.bytes ? &chunk : nullptr;
}

void protect(uintptr_t page, int protection) {
  if (mprotect(reinterpret_cast<void*>(page), kPageBytes, protection) != 0)
    give_up("cannot protect a page of pinned memory");
}

void apply(uintptr_t page) {
  const auto found = state().pages.find(page);
  const Uses uses = found == state().pages.end() ? Uses{} : found->second;
  protect(page, uses.writes ? PROT_NONE : uses.reads ? PROT_READ : PROT_READ | PROT_WRITE);
}

// Adds `change` to the uses of all pages of the flight.
void count_uses(const Flight& flight, int change) {
  const uintptr_t first = flight.host & ~uintptr_t{kPageBytes - 1};
  for (uintptr_t page = first; page < flight.host + flight.bytes; page += kPageBytes) {
    Uses& uses = state().pages[page];
    const Uses old = uses;
    (flight.writes ? uses.writes : uses.reads) += change;
    const bool same = (old.writes > 0) == (uses.writes > 0) && (old.reads > 0) == (uses.reads > 0);
    if (!same) apply(page);
    if (uses.reads == 0 && uses.writes == 0) state().pages.erase(page);
  }
}

// The innermost place of this executable that led to a signal at `at`.
const void* culprit(const void* at) {
  struct Image {
    uintptr_t begin = 0, end = 0;
  } image;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        Image& all = *static_cast<Image*>(out);
        all.begin = info->dlpi_addr;
        for (int i = 0; i < info->dlpi_phnum; ++i)
          if (info->dlpi_phdr[i].p_type == PT_LOAD)
            all.end = std::max<uintptr_t>(
                all.end, info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz);
        return 1;
      },
      &image);
  const auto ours = [&](const void* p) {
    return address_of(p) - image.begin < image.end - image.begin;
  };
  if (ours(at)) return at;
  constexpr int kFrames = 24;
  void* frames[kFrames];
  const int count = backtrace(frames, kFrames);
  int i = 0;
  while (i < count && frames[i] != at) ++i;  // below: this function and the handler
  for (; i < count; ++i)
    if (ours(frames[i])) return static_cast<char*>(frames[i]) - 1;
  return nullptr;
}

void on_fault(int signal, siginfo_t* info, void* context) {
  State& s = state();
  const uintptr_t at = address_of(info->si_addr);
  const auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const bool writes = registers[REG_ERR] & 2;
  std::string what;
  {
    std::lock_guard guard(s.lock);
    const uintptr_t page = at & ~uintptr_t{kPageBytes - 1};
    if (!s.pages.count(page) || !chunk_of(at)) {  // not ours: let it end the process
      sigaction(signal, &s.before, nullptr);
      return;
    }
    for (const Flight& flight : s.flights)
      if (at - flight.host < flight.bytes && (writes || flight.writes))
        what = fmt::format("the host {} byte {} of a pinned buffer of {} bytes that '{}' {}",
                           writes ? "writes" : "reads", at - flight.host, flight.bytes, flight.name,
                           flight.writes ? "writes" : "reads");
    protect(page, PROT_READ | PROT_WRITE);
    s.opened.push_back(page);
  }
  if (what.empty()) return;
  const void* code = culprit(reinterpret_cast<void*>(registers[REG_RIP]));
  report("pinned buffer in flight", code, "{}, without having waited for it, at {}", what,
         code ? source_of(code) : "an unknown place");
}

void install_handler() {
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, &state().before);
    void* frames[1];
    backtrace(frames, 1);  // loads its library now, not inside the handler
    return true;
  }();
  static_cast<void>(installed);
}

size_t whole_pages(size_t bytes) { return (bytes + kPageBytes - 1) & ~(kPageBytes - 1); }

// Maps new shared pages at `host` (nullptr: anywhere) and at a new place of the pinned view.
Chunk map_twice(void* host, size_t bytes) {
  const int file = memfd_create("pinned", MFD_CLOEXEC);
  if (file < 0) return {};
  Chunk chunk;
  chunk.bytes = bytes;
  const size_t mapped = whole_pages(bytes);
  void* view = reserve_pinned(bytes);
  if (view && ftruncate(file, static_cast<off_t>(mapped)) == 0) {
    void* there =
        mmap(host, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | (host ? MAP_FIXED : 0), file, 0);
    void* here = mmap(view, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
    if (there == MAP_FAILED || here == MAP_FAILED) give_up("cannot map pinned memory");
    chunk.host = address_of(there);
    chunk.view = address_of(view);
  }
  close(file);
  return chunk;
}

void drop_flights_of(const Chunk& chunk) {
  std::vector<Flight>& flights = state().flights;
  for (size_t i = flights.size(); i-- > 0;) {
    const Flight& flight = flights[i];
    if (flight.host - chunk.host >= chunk.bytes) continue;
    report("pinned buffer in flight", nullptr, "pinned memory is freed while '{}' uses it",
           flight.name);
    count_uses(flight, -1);
    flights.erase(flights.begin() + static_cast<ptrdiff_t>(i));
  }
}

}  // namespace

void* allocate(size_t bytes) {
  install_handler();
  const Chunk chunk = map_twice(nullptr, bytes);
  if (!chunk.host) return nullptr;
  std::lock_guard guard(state().lock);
  state().chunks[chunk.host] = chunk;
  state().bytes += static_cast<int64_t>(bytes);
  return reinterpret_cast<void*>(chunk.host);
}

bool free(void* host) {
  std::lock_guard guard(state().lock);
  const auto found = state().chunks.find(address_of(host));
  if (found == state().chunks.end() || found->second.enrolled) return false;
  const Chunk chunk = found->second;
  drop_flights_of(chunk);
  munmap(host, whole_pages(chunk.bytes));
  emulated::release(reinterpret_cast<void*>(chunk.view));
  munmap(reinterpret_cast<void*>(chunk.view), whole_pages(chunk.bytes));
  state().bytes -= static_cast<int64_t>(chunk.bytes);
  state().chunks.erase(found);
  return true;
}

bool enroll(void* host, size_t bytes) {
  install_handler();
  if (address_of(host) % kPageBytes || bytes == 0) return false;
  {
    std::lock_guard guard(state().lock);
    if (chunk_of(address_of(host)) || chunk_of(address_of(host) + bytes - 1)) return false;
  }
  const size_t mapped = whole_pages(bytes);
  std::vector<unsigned char> contents(mapped);
  std::memcpy(contents.data(), host, mapped);
  Chunk chunk = map_twice(host, bytes);
  if (!chunk.host) return false;
  std::memcpy(host, contents.data(), mapped);
  chunk.enrolled = true;
  std::lock_guard guard(state().lock);
  state().chunks[chunk.host] = chunk;
  state().bytes += static_cast<int64_t>(bytes);
  return true;
}

bool withdraw(void* host) {
  std::unique_lock guard(state().lock);
  const auto found = state().chunks.find(address_of(host));
  if (found == state().chunks.end() || !found->second.enrolled) return false;
  const Chunk chunk = found->second;
  drop_flights_of(chunk);
  state().bytes -= static_cast<int64_t>(chunk.bytes);
  state().chunks.erase(found);
  guard.unlock();
  const size_t mapped = whole_pages(chunk.bytes);
  std::vector<unsigned char> contents(mapped);
  std::memcpy(contents.data(), host, mapped);
  if (mmap(host, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
      MAP_FAILED)
    give_up("cannot give back registered memory");
  std::memcpy(host, contents.data(), mapped);
  emulated::release(reinterpret_cast<void*>(chunk.view));
  munmap(reinterpret_cast<void*>(chunk.view), mapped);
  return true;
}

int64_t bytes_in_use() { return state().bytes; }

uintptr_t view_of(uintptr_t host) {
  std::lock_guard guard(state().lock);
  const Chunk* chunk = chunk_of(host);
  return chunk ? chunk->view + (host - chunk->host) : 0;
}

size_t bytes_from(uintptr_t host) {
  std::lock_guard guard(state().lock);
  const Chunk* chunk = chunk_of(host);
  return chunk ? chunk->host + chunk->bytes - host : 0;
}

void issued(uint64_t id, uintptr_t host, size_t bytes, bool writes, const std::string& name) {
  if (bytes == 0) return;
  std::lock_guard guard(state().lock);
  state().flights.push_back({id, host, bytes, writes, name, -1, 0});
  count_uses(state().flights.back(), 1);
}

bool being_written(uintptr_t host, size_t bytes) {
  std::lock_guard guard(state().lock);
  return std::any_of(state().flights.begin(), state().flights.end(), [&](const Flight& flight) {
    return flight.writes && flight.host < host + bytes && host < flight.host + flight.bytes;
  });
}

void executed(uint64_t id, int actor, uint32_t count) {
  std::lock_guard guard(state().lock);
  for (Flight& flight : state().flights)
    if (flight.id == id) {
      flight.actor = actor;
      flight.count = count;
    }
}

void release(const Clock& host) {
  std::lock_guard guard(state().lock);
  std::erase_if(state().flights, [&](const Flight& flight) {
    const bool known = flight.actor >= 0 && host.knows(flight.actor, flight.count);
    if (known) count_uses(flight, -1);
    return known;
  });
}

void protect_again() {
  State& s = state();
  if (s.opened.empty()) return;
  std::lock_guard guard(s.lock);
  for (uintptr_t page : s.opened) apply(page);
  s.opened.clear();
}

}  // namespace spillway::emulated::pinned
