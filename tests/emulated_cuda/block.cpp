#include "block.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fiber.h"
#include "random.h"
#include "report.h"
#include "shadow.h"
#include "warp_counts.h"

namespace spillway::emulated {
namespace {

struct Group {  // a collective that waits for lanes
  void (*finish)(Lanes&) = nullptr;
  uint32_t arrived = 0, left = 0;
  Lanes lanes;
};

struct Warp {
  std::vector<Group*> pending;
  uint32_t exited = 0;  // lanes
};

struct Copy {
  void* to;
  const void* from;
  uint32_t bytes, group;
  bool valid;
};

struct CopyQueue {
  std::vector<Copy> copies;  // in order of issue
  uint32_t committed = 0;    // groups
};

// One block runs at a time in a process, so its state is global.
struct Executor {
  const Launch* launch = nullptr;
  uint3 block{};
  FiberStacks stacks;
  std::vector<DeviceThread> threads;
  std::vector<Warp> warps;
  std::vector<CopyQueue> queues;
  std::vector<std::unique_ptr<Group>> groups;
  std::vector<Group*> free_groups;
  std::vector<uint32_t> order;
  void* scheduler_stack = nullptr;
  unsigned alive = 0, at_barrier = 0;
  bool abandoned = false;
  BarrierResult gathered, released;
  unsigned char* shared = nullptr;
  Random random{1};
  Counts counts;
};
Executor executor;

uint32_t bit(unsigned lane) { return 1u << lane; }

void leave_to_scheduler() {
  ++executor.counts.switches;
  spillway_switch_fiber(&running_fiber->stack, executor.scheduler_stack);
}

void release_barrier() {
  for (DeviceThread& t : executor.threads)
    if (t.state == DeviceThread::State::at_barrier) t.state = DeviceThread::State::ready;
  executor.at_barrier = 0;
  executor.released = std::exchange(executor.gathered, {});
  ++executor.counts.barriers;
  shadow::barrier_passed();
}

void run_thread() {
  executor.launch->body(executor.launch->arguments);
  DeviceThread& thread = *running_fiber;
  CopyQueue& queue = executor.queues[thread.linear];
  if (!queue.copies.empty())
    report("unfinished cp.async", executor.launch->kernel, "{} ends with copies in flight",
           where_running());
  thread.state = DeviceThread::State::done;
  executor.warps[thread.warp].exited |= bit(thread.lane);
  --executor.alive;
  leave_to_scheduler();
  __builtin_unreachable();
}

void begin_block(uint3 block) {
  const dim3 size = executor.launch->block;
  const unsigned count = size.x * size.y * size.z, warps = (count + kWarp - 1) / kWarp;
  executor.block = block;
  executor.threads.assign(count, {});
  executor.warps.resize(warps);
  for (Warp& w : executor.warps) w = {std::move(w.pending), 0}, w.pending.clear();
  executor.queues.resize(std::max<size_t>(executor.queues.size(), count));
  for (CopyQueue& q : executor.queues) q.copies.clear(), q.committed = 0;
  executor.free_groups.clear();
  for (auto& group : executor.groups) executor.free_groups.push_back(group.get());
  executor.alive = count;
  executor.at_barrier = 0;
  executor.abandoned = false;
  executor.gathered = {};
  for (unsigned i = 0; i < count; ++i) {
    DeviceThread& t = executor.threads[i];
    t.linear = i;
    t.lane = i % kWarp;
    t.warp = i / kWarp;
    t.index = {i % size.x, i / size.x % size.y, i / size.x / size.y};
    t.stack = executor.stacks.prepare(i, run_thread);
  }
  executor.order.resize(warps);
  for (unsigned i = 0; i < warps; ++i) executor.order[i] = i;
  std::memset(executor.shared, 0xFF, executor.launch->shared_bytes);
  shadow::begin_block();
}

// Lets every ready thread of the warp run until it blocks. False: none was ready.
bool run_warp(unsigned warp) {
  const unsigned first = warp * kWarp;
  const unsigned lanes =
      std::min<unsigned>(kWarp, static_cast<unsigned>(executor.threads.size()) - first);
  const unsigned start = static_cast<unsigned>(executor.random.below(lanes));
  const bool backwards = executor.random.below(2);
  bool any = false;
  for (unsigned k = 0; k < lanes; ++k) {
    const unsigned lane = (backwards ? start + lanes - k : start + k) % lanes;
    DeviceThread& thread = executor.threads[first + lane];
    if (thread.state != DeviceThread::State::ready) continue;
    any = true;
    running_fiber = &thread;
    ++executor.counts.switches;
    spillway_switch_fiber(&executor.scheduler_stack, thread.stack);
    if (executor.abandoned) break;
  }
  return any;
}

void tell_of_deadlock() {
  unsigned in_collective = 0;
  for (DeviceThread& t : executor.threads)
    if (t.state == DeviceThread::State::in_collective) {
      ++in_collective;
      running_fiber = &t;
    }
  report("deadlock", running_fiber->blocked_at,
         "{} of {} threads wait at a barrier and {} in a warp collective; one stands at {}, {}",
         executor.at_barrier, executor.alive, in_collective, source_of(running_fiber->blocked_at),
         where_running());
}

void run_block(uint3 block) {
  begin_block(block);
  while (executor.alive && !executor.abandoned) {
    bool any = false;
    for (size_t i = executor.order.size(); i > 1; --i)
      std::swap(executor.order[i - 1], executor.order[executor.random.below(i)]);
    for (uint32_t warp : executor.order) {
      any |= run_warp(warp);
      if (executor.abandoned) break;
    }
    if (any || executor.abandoned) continue;
    if (executor.at_barrier == executor.alive) {  // the others have ended
      release_barrier();
      continue;
    }
    tell_of_deadlock();
    break;
  }
  running_fiber = nullptr;
  if (warp_counts::wanted()) warp_counts::end_block(static_cast<unsigned>(executor.threads.size()));
}

}  // namespace

constinit thread_local bool on_device = false;
DeviceThread* running_fiber = nullptr;

const char* broken_limit(const Launch& launch) {
  const auto volume = [](dim3 d) { return uint64_t{d.x} * d.y * d.z; };
  if (volume(launch.grid) == 0) return "an empty grid";
  if (launch.grid.y > 65535 || launch.grid.z > 65535) return "more than 65535 blocks in y or z";
  if (volume(launch.block) == 0) return "an empty block";
  if (volume(launch.block) > kMaxThreads || launch.block.z > 64) return "too many threads a block";
  if (launch.shared_bytes > kMaxSharedBytes) return "more than 227 KiB of shared memory";
  return nullptr;
}

void run_grid(const Launch& launch) {
  if (!executor.shared) {
    void* mapped =
        mmap(nullptr, kMaxSharedBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) give_up("no memory for shared memory");
    executor.shared = static_cast<unsigned char*>(mapped);
  }
  executor.launch = &launch;
  executor.random = Random(launch.seed);
  ++executor.counts.launches;
  on_device = true;
  shadow::begin_kernel(executor.shared, launch.shared_bytes);
  for (unsigned z = 0; z < launch.grid.z; ++z)
    for (unsigned y = 0; y < launch.grid.y; ++y)
      for (unsigned x = 0; x < launch.grid.x; ++x) {
        run_block({x, y, z});
        ++executor.counts.blocks;
        executor.counts.threads += executor.threads.size();
      }
  on_device = false;
  shadow::end_kernel();
  executor.launch = nullptr;
}

const Launch* running_launch() { return executor.launch; }
unsigned char* dynamic_shared() { return executor.shared; }
int lane_index() { return static_cast<int>(running_fiber->lane); }
uint3 thread_index() { return running_fiber->index; }
uint3 block_index() { return executor.block; }
dim3 block_size() { return executor.launch->block; }
dim3 grid_size() { return executor.launch->grid; }
const Counts& counts() { return executor.counts; }

std::string where_running() {
  return fmt::format("block ({},{},{}) thread {} of {}", executor.block.x, executor.block.y,
                     executor.block.z, running_fiber ? running_fiber->linear : 0,
                     source_of(executor.launch->kernel));
}

void abandon_block() {
  executor.abandoned = true;
  leave_to_scheduler();
  __builtin_unreachable();
}

BarrierResult barrier(int value, const void* code) {
  executor.gathered.any |= value != 0;
  executor.gathered.all &= value != 0;
  executor.gathered.count += value != 0;
  DeviceThread& thread = *running_fiber;
  thread.state = DeviceThread::State::at_barrier;
  thread.blocked_at = code;
  if (++executor.at_barrier < executor.alive) {
    leave_to_scheduler();
    return executor.released;
  }
  for (const DeviceThread& t : executor.threads)
    // The compiler may have copied one barrier into two branches: the line tells.
    if (t.state == DeviceThread::State::at_barrier && t.blocked_at != code &&
        line_of(t.blocked_at) != line_of(code)) {
      report("divergent barrier", code, "threads of one block wait at {} and at {}; {}",
             source_of(t.blocked_at), source_of(code), where_running());
      abandon_block();
    }
  release_barrier();
  return executor.released;
}

void collective(uint32_t mask, void (*finish)(Lanes&), const void* in, size_t in_bytes, void* out,
                size_t out_bytes, const void* code) {
  ++executor.counts.collectives;
  DeviceThread& thread = *running_fiber;
  Warp& warp = executor.warps[thread.warp];
  const unsigned lanes = std::min<unsigned>(
      kWarp, static_cast<unsigned>(executor.threads.size()) - thread.warp * kWarp);
  const uint32_t existing = lanes == kWarp ? ~0u : bit(lanes) - 1;
  const auto refuse = [&](const char* what) {
    report("warp collective", code, "mask {:08x} {} at {}; {}", mask, what, source_of(code),
           where_running());
    abandon_block();
  };
  if (!(mask & bit(thread.lane))) refuse("leaves out the calling lane");
  if (mask & ~existing) refuse("names lanes that the block does not have");
  if (mask & warp.exited) refuse("names lanes that have ended");
  Group* group = nullptr;
  for (Group* waiting : warp.pending)
    if (waiting->lanes.mask & mask) group = waiting;
  if (group && (group->lanes.mask != mask || group->finish != finish))
    refuse("meets another collective of the same lanes");
  if (!group) {
    if (executor.free_groups.empty()) {
      executor.groups.push_back(std::make_unique<Group>());
      executor.free_groups.push_back(executor.groups.back().get());
    }
    group = executor.free_groups.back();
    executor.free_groups.pop_back();
    group->finish = finish;
    group->arrived = group->left = 0;
    group->lanes.mask = mask;
    warp.pending.push_back(group);
  }
  std::memcpy(group->lanes.in[thread.lane], in, in_bytes);
  group->arrived |= bit(thread.lane);
  if (group->arrived == mask) {
    group->lanes.code = code;
    if (finish) {
      finish(group->lanes);
    } else if ((mask | warp.exited) == existing) {
      shadow::warp_synchronised(thread.warp);
    }
    std::erase(warp.pending, group);
    for (uint32_t rest = mask & ~bit(thread.lane); rest; rest &= rest - 1)
      executor.threads[thread.warp * kWarp + __builtin_ctz(rest)].state =
          DeviceThread::State::ready;
  } else {
    thread.state = DeviceThread::State::in_collective;
    thread.blocked_at = code;
    leave_to_scheduler();
  }
  std::memcpy(out, group->lanes.out[thread.lane], out_bytes);
  if (++group->left == static_cast<uint32_t>(__builtin_popcount(mask)))
    executor.free_groups.push_back(group);
}

void issue_copy(void* shared, const void* global, size_t bytes, bool valid, const void* code) {
  const uintptr_t both =
      reinterpret_cast<uintptr_t>(shared) | (valid ? reinterpret_cast<uintptr_t>(global) : 0);
  if (both % bytes) {
    report("misaligned", code, "cp.async of {} bytes from {} to {} at {}; {}", bytes, global,
           shared, source_of(code), where_running());
    abandon_block();
  }
  if (valid) shadow::read(global, bytes, code);
  shadow::begin_copy(shared, bytes, code);
  CopyQueue& queue = executor.queues[running_fiber->linear];
  queue.copies.push_back({shared, global, static_cast<uint32_t>(bytes), queue.committed, valid});
}

void commit_copies() { ++executor.queues[running_fiber->linear].committed; }

void wait_for_copies(unsigned pending, const void* code) {
  CopyQueue& queue = executor.queues[running_fiber->linear];
  size_t done = 0;
  for (; done < queue.copies.size(); ++done) {
    const Copy& copy = queue.copies[done];
    if (copy.group + pending >= queue.committed) break;
    if (copy.valid) {
      shadow::read(copy.from, copy.bytes, code);
      std::memcpy(copy.to, copy.from, copy.bytes);
    } else {
      std::memset(copy.to, 0, copy.bytes);
    }
    shadow::end_copy(copy.to, copy.bytes, code);
  }
  queue.copies.erase(queue.copies.begin(), queue.copies.begin() + static_cast<ptrdiff_t>(done));
}

}  // namespace spillway::emulated
