#include "runtime/cuda/pinned_arena.h"

#include <hwloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstring>

// The bundled helper asks the driver for the device's place and sysfs for the cores beside it.
#include <hwloc/cudart.h>

#include "config/hardware.h"

namespace spillway::cuda {
namespace {

// Binds what is not yet in memory; "" or why not.
std::string bind_to_node(void* begin, int64_t bytes, int device) {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0 || hwloc_topology_load(topology) != 0) {
    if (topology) hwloc_topology_destroy(topology);
    return "hwloc cannot read this machine's topology";
  }
  std::string why;
  hwloc_bitmap_t cores = hwloc_bitmap_alloc(), nodes = hwloc_bitmap_alloc();
  if (hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE) > 1) {
    if (hwloc_cudart_get_device_cpuset(topology, device, cores) != 0) {
      why = "the device's place in the machine is not known";
    } else {
      hwloc_cpuset_to_nodeset(topology, cores, nodes);
      // Not strict: a node that is full must not end the run.
      if (hwloc_set_area_membind(topology, begin, static_cast<size_t>(bytes), nodes,
                                 HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_BYNODESET) != 0)
        why = std::string("binding memory is refused: ") + std::strerror(errno);
    }
  }
  hwloc_bitmap_free(cores);
  hwloc_bitmap_free(nodes);
  hwloc_topology_destroy(topology);
  return why;
}

std::string limits_text() {
  rlimit locked{};
  std::string ulimit = "unlimited";
  if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY)
    ulimit = format_bytes(static_cast<int64_t>(locked.rlim_cur));
  return fmt::format("limits: ulimit -l {}, memory of this machine or its cgroup {}", ulimit,
                     format_bytes(machine_memory_bytes()));
}

}  // namespace

void PinnedArena::reserve(int64_t bytes, int device, const PinnedOptions& options,
                          const Place& place, const std::function<void(const std::string&)>& say) {
  const auto refuse = [&](const std::string& why) {
    const std::string where = place.ranks > 1 ? fmt::format("rank {}: ", place.rank) : "";
    fail(ExitCode::does_not_fit,
         "{}host tier: cannot pin {} of {} for the device: {} ({}). Lower memory.host or the "
         "model's size, or raise the limit",
         where, format_bytes(bytes - pinned_), format_bytes(bytes), why, limits_text());
  };
  // Touching more than a cgroup allows would end the process without a word.
  if (bytes > machine_memory_bytes()) refuse("more than there is");
  arena_.map("host", bytes);
  chunk_ = options.chunk_bytes;
  const int64_t total = arena_.pages_bytes();
  const std::string unbound = bind_to_node(arena_.pages_begin(), total, device);
  if (say && !unbound.empty())
    say("pinned host memory is not bound to the device's NUMA node: " + unbound);
  const auto start = std::chrono::steady_clock::now();
  double said = 0;
  while (pinned_ < total) {
    const int64_t n = std::min(chunk_, total - pinned_);
    arena_.touch(pinned_, pinned_ + n);
    const cudaError_t error = cudaHostRegister(arena_.pages_begin() + pinned_,
                                               static_cast<size_t>(n), cudaHostRegisterPortable);
    if (error != cudaSuccess) {
      cudaGetLastError();  // it does not stay
      refuse(fmt::format("cudaHostRegister failed: {} ({})", cudaGetErrorString(error),
                         cudaGetErrorName(error)));
    }
    pinned_ += n;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (say && pinned_ < total && elapsed.count() - said > options.quiet_seconds) {
      said = elapsed.count();
      say(fmt::format("pinning host memory: {} of {} after {:.0f} s", format_bytes(pinned_),
                      format_bytes(total), said));
    }
  }
}

int64_t PinnedArena::to_border(const void* data) const {
  return chunk_ - (static_cast<const char*>(data) - arena_.pages_begin()) % chunk_;
}

PinnedArena::~PinnedArena() {
  if (leaked_) return;
  for (int64_t at = 0; at < pinned_; at += chunk_) cudaHostUnregister(arena_.pages_begin() + at);
}

}  // namespace spillway::cuda
