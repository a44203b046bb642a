// Runs the blocks of a launch one after another on the calling OS thread: a fiber for every CUDA
// thread, which runs until it blocks at a barrier or in a warp collective. The order of warps and
// lanes is drawn from the launch's seed.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace spillway::emulated {

struct Launch {
  dim3 grid, block;
  size_t shared_bytes = 0;  // dynamic
  uint64_t seed = 1;
  const void* kernel = nullptr;  // its code, which names it
  const char* source = "";       // the translation unit that launches it
  void (*body)(const void* arguments) = nullptr;
  const void* arguments = nullptr;
  size_t argument_bytes = 0;
};

constexpr unsigned kWarp = 32;
constexpr unsigned kMaxThreads = 1024;
constexpr size_t kMaxSharedBytes = 227 << 10;

// The launch's limits, as the hardware states them; nullptr if it keeps them, else what it breaks.
const char* broken_limit(const Launch& launch);
void run_grid(const Launch& launch);

struct DeviceThread {
  enum class State : uint8_t { ready, at_barrier, in_collective, done };
  void* stack = nullptr;  // saved stack pointer
  uint3 index{};
  uint32_t linear = 0, lane = 0, warp = 0;
  State state = State::ready;
  const void* blocked_at = nullptr;
};

// Set on the OS thread that runs a kernel. Others may execute instrumented code too: the host parts
// of kernels.
extern constinit thread_local bool on_device;

// nullptr outside kernels.
extern DeviceThread* running_fiber;
inline const DeviceThread* running_thread() { return running_fiber; }
const Launch* running_launch();
unsigned char* dynamic_shared();  // of the running block; kMaxSharedBytes are mapped

uint3 thread_index();
int lane_index();
uint3 block_index();
dim3 block_size();
dim3 grid_size();

// "block (x,y,z) thread t of kernel (file:line)", for reports.
std::string where_running();

// Ends the running block after a report: its threads do not continue. Called on a fiber.
[[noreturn]] void abandon_block();

// __syncthreads. `value` of the threads is combined for the _or, _and and _count forms.
struct BarrierResult {
  int any = 0, all = 1, count = 0;
};
BarrierResult barrier(int value, const void* code);

// What the lanes of a warp put in and take out of a collective.
struct Lanes {
  static constexpr size_t kBytes = 64;
  uint32_t mask = 0;
  const void* code = nullptr;  // of the lane that came last
  alignas(16) unsigned char in[kWarp][kBytes];
  alignas(16) unsigned char out[kWarp][kBytes];
  template <class T>
  T& in_of(unsigned lane) {
    static_assert(sizeof(T) <= kBytes);
    return *reinterpret_cast<T*>(in[lane]);
  }
  template <class T>
  T& out_of(unsigned lane) {
    static_assert(sizeof(T) <= kBytes);
    return *reinterpret_cast<T*>(out[lane]);
  }
};
// Waits for all lanes of `mask`; `finish` then runs once and fills `out`. nullptr: __syncwarp,
// the only collective that orders the memory accesses of the lanes.
void collective(uint32_t mask, void (*finish)(Lanes&), const void* in, size_t in_bytes, void* out,
                size_t out_bytes, const void* code);

// cp.async: the copy happens when the thread waits for its group, as late as the hardware may.
void issue_copy(void* shared, const void* global, size_t bytes, bool valid, const void* code);
void commit_copies();
void wait_for_copies(unsigned pending, const void* code);

struct Counts {
  uint64_t launches = 0, blocks = 0, threads = 0, switches = 0, collectives = 0, barriers = 0;
};
const Counts& counts();

}  // namespace spillway::emulated
