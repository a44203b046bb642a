// Checks of one rank's process and machine.
#include <dlfcn.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>

#include "config/hardware.h"
#include "runtime/cpu/mpi_communicator.h"
#include "train/doctor_checks.h"
#include "train/workload.h"

namespace spillway {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
constexpr int64_t kMiB = int64_t{1} << 20;

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

int64_t limit_of(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnlimited;
  return static_cast<int64_t>(limit.rlim_cur);
}

std::string shown(int64_t bytes) { return bytes == kUnlimited ? "unlimited" : format_bytes(bytes); }

int64_t meminfo(const std::string& key) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind(key + ":", 0) == 0) return std::atoll(line.c_str() + key.size() + 1) * 1024;
  return 0;
}

int cores_of(const cpu_set_t& set) { return CPU_COUNT(&set); }

// The cores this process is bound to, and those it could have.
std::pair<cpu_set_t, cpu_set_t> own_and_all_cores() {
  cpu_set_t own, all;
  CPU_ZERO(&own);
  sched_getaffinity(0, sizeof own, &own);
  std::memset(&all, 0xFF, sizeof all);
  if (sched_setaffinity(0, sizeof all, &all) != 0) return {own, own};
  sched_getaffinity(0, sizeof all, &all);
  sched_setaffinity(0, sizeof own, &own);
  return {own, all};
}

Check cores(int ranks_on_node) {
  const auto [own, all] = own_and_all_cores();
  const int bound = cores_of(own), node = cores_of(all);
  const int share = std::max(1, node / std::max(1, ranks_on_node));
  Check f{"cores",
          Health::ok,
          fmt::format("{} of {} cores for a rank, {} rank{} on the node", bound, node,
                      ranks_on_node, ranks_on_node == 1 ? "" : "s"),
          "",
          {}};
  if (bound < share) {
    f.health = Health::warning;
    f.found = fmt::format("bound to {} of {} cores, where its share is {}", bound, node, share);
    f.mend = "mpirun --bind-to none (or --map-by slot:PE=n, srun --cpus-per-task=n)";
  }
  return f;
}

Check threads(const Needs& needs, int ranks_on_node) {
  const int node = cores_of(own_and_all_cores().second);
  const int share = std::max(1, node / std::max(1, ranks_on_node));
  const int wanted = needs.threads > 0 ? needs.threads : share;
  Check f{"threads",
          Health::ok,
          fmt::format("{} compute thread{} a rank, {} hardware cores", wanted,
                      wanted == 1 ? "" : "s", node),
          "",
          {}};
  if (wanted * ranks_on_node > node) {
    f.health = Health::warning;
    f.found = fmt::format("{} ranks × {} threads on {} cores", ranks_on_node, wanted, node);
    f.mend = "fewer ranks on the node, or train.threads lower; OMP_WAIT_POLICY=passive helps";
  }
  return f;
}

// "0-3,8" → the numbers.
std::set<int> numbers_of(const std::string& list) {
  std::set<int> result;
  std::stringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t dash = part.find('-');
    const int first = std::atoi(part.c_str());
    const int last = dash == std::string::npos ? first : std::atoi(part.c_str() + dash + 1);
    for (int i = first; i <= last; ++i) result.insert(i);
  }
  return result;
}

Check numa(int ranks_on_node) {
  const auto [own, all] = own_and_all_cores();
  int nodes = 0, touched = 0;
  for (const int node : numbers_of(first_line("/sys/devices/system/node/online"))) {
    ++nodes;
    const auto cpus =
        numbers_of(first_line(fmt::format("/sys/devices/system/node/node{}/cpulist", node)));
    touched += std::any_of(cpus.begin(), cpus.end(), [&](int c) { return CPU_ISSET(c, &own); });
  }
  std::string devices;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/bus/pci/devices", error))
    if (first_line(entry.path() / "vendor") == "0x10de" &&
        first_line(entry.path() / "class").rfind("0x03", 0) == 0)
      devices += fmt::format("; GPU {} on NUMA node {}", entry.path().filename().string(),
                             first_line(entry.path() / "numa_node"));
  Check f{"NUMA",
          Health::ok,
          fmt::format("{} node{}, a rank on {}{}", nodes, nodes == 1 ? "" : "s", touched, devices),
          "",
          {}};
  if (nodes > 1 && touched > 1 && ranks_on_node >= nodes) {
    f.health = Health::warning;
    f.mend =
        "a rank whose threads stay on one NUMA node reads its memory faster: mpirun --map-by numa "
        "--bind-to numa";
  }
  return f;
}

Check memory_limit(const Needs& needs, int ranks_on_node) {
  const int64_t physical =
      static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  const int64_t machine = machine_memory_bytes();
  const int64_t process = std::min(limit_of(RLIMIT_AS), limit_of(RLIMIT_DATA));
  Check f{"memory limit",
          Health::ok,
          fmt::format("{} for the node ({}), {} for a process", format_bytes(machine),
                      machine < physical ? "a cgroup's" : "physical memory", shown(process)),
          "",
          {}};
  if (!needs.known) return f;
  const int64_t rank = needs.node_bytes(), node = rank * ranks_on_node;
  if (rank > process) {
    f.health = Health::error;
    f.found = fmt::format("the plan needs {} a rank, ulimit -v or -d allows {}", format_bytes(rank),
                          format_bytes(process));
    f.mend = "ulimit -v unlimited -d unlimited, or less memory.device and memory.host";
  } else if (node > machine) {
    f.health = Health::error;
    f.found = fmt::format("the plan needs {} on this node ({} ranks × {}), {} allows {}",
                          format_bytes(node), ranks_on_node, format_bytes(rank),
                          machine < physical ? "its cgroup" : "its memory", format_bytes(machine));
    f.mend =
        "more memory for the job (Slurm --mem), fewer ranks a node, or less memory.device and "
        "memory.host";
  } else {
    f.found += fmt::format("; the plan needs {} on this node", format_bytes(node));
  }
  return f;
}

Check free_memory(const Needs& needs, int ranks_on_node) {
  const int64_t available = std::min(meminfo("MemAvailable"), machine_memory_bytes());
  Check f{"free memory", Health::ok, format_bytes(available) + " available", "", {}};
  if (!needs.known) return f;
  const int64_t node = needs.node_bytes() * ranks_on_node;
  if (node > available) {
    f.health = Health::error;
    f.found += fmt::format(", the plan needs {} on this node", format_bytes(node));
    f.mend = "end what else runs there, or less memory.device and memory.host";
  }
  return f;
}

Check locked_memory(const Needs& needs) {
  const int64_t limit = limit_of(RLIMIT_MEMLOCK);
  bool capable = false;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("CapEff:", 0) == 0) {
      constexpr uint64_t kIpcLock = uint64_t{1} << 14;
      capable = (std::strtoull(line.c_str() + 7, nullptr, 16) & kIpcLock) != 0;
    }
  Check f{"locked memory",
          Health::ok,
          fmt::format("ulimit -l {}{}", shown(limit), capable ? ", and CAP_IPC_LOCK" : ""),
          "",
          {}};
  if (!needs.cuda) {
    f.found += "; only CUDA runs need it";
    return f;
  }
  const int64_t wanted = needs.known ? needs.host_bytes : kUnlimited;
  if (capable || limit >= wanted) return f;
  f.health = needs.known ? Health::error : Health::warning;
  f.found = fmt::format("ulimit -l is {}, {} are to be pinned, and CAP_IPC_LOCK is not there",
                        shown(limit), needs.known ? format_bytes(wanted) : "a run's host bytes");
  f.mend =
      "ulimit -l unlimited (memlock in limits.conf; Slurm: PropagateResourceLimitsExcept=MEMLOCK)";
  return f;
}

Check open_files(int ranks) {
  constexpr int64_t kFiles = 256, kPerRank = 4;  // data, libraries; connections to a peer
  const int64_t limit = limit_of(RLIMIT_NOFILE), wanted = kFiles + kPerRank * ranks;
  Check f{"open files",
          Health::ok,
          fmt::format("ulimit -n {}", limit == kUnlimited ? "unlimited" : std::to_string(limit)),
          "",
          {}};
  if (limit >= wanted) return f;
  f.health = Health::error;
  f.found += fmt::format(", {} ranks need about {}", ranks, wanted);
  f.mend = fmt::format("ulimit -n {}", std::max<int64_t>(4096, wanted));
  return f;
}

Check shared_memory(int ranks_on_node) {
  struct statvfs s {};
  if (statvfs("/dev/shm", &s) != 0)
    return {"/dev/shm",
            Health::error,
            "is not there: ranks of a node find each other through it",
            "mount a tmpfs at /dev/shm",
            {}};
  const int64_t free = static_cast<int64_t>(s.f_bavail) * static_cast<int64_t>(s.f_frsize);
  Check f{"/dev/shm", Health::ok, format_bytes(free) + " free", "", {}};
  constexpr int64_t kPerRank = 16 * kMiB;  // Open MPI's segments
  if (ranks_on_node > 1 && free < kPerRank * ranks_on_node) {
    f.health = Health::error;
    f.found += fmt::format(", {} ranks need about {}", ranks_on_node,
                           format_bytes(kPerRank * ranks_on_node));
    f.mend = "a larger /dev/shm (docker --shm-size), or OMPI_MCA_btl=tcp,self";
  }
  return f;
}

Check huge_pages() {
  const std::string setting = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  const size_t open = setting.find('['), close = setting.find(']');
  const std::string chosen =
      open == std::string::npos ? "unknown" : setting.substr(open + 1, close - open - 1);
  if (chosen == "always" || chosen == "madvise") return {"huge pages", Health::ok, chosen, "", {}};
  return {"huge pages",
          Health::warning,
          chosen + ": arenas get small pages, whose faults are dear",
          "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
          {}};
}

}  // namespace

int64_t Needs::node_bytes() const {
  return (cuda ? 0 : device_bytes) + host_bytes + kProcessReserveBytes;
}

std::vector<Check> check_host(const Needs& needs, const Communicator& communicator) {
  const int here = communicator.ranks_on_node();
  return {cores(here),
          threads(needs, here),
          numa(here),
          memory_limit(needs, here),
          free_memory(needs, here),
          locked_memory(needs),
          open_files(communicator.size()),
          shared_memory(here),
          huge_pages()};
}

Check check_launch(const Launcher& launcher, const Communicator& communicator) {
  Check f{"launch",
          Health::ok,
          fmt::format("{}, {}: {} rank{} on {} node{}", mpi_library(), launcher.name,
                      communicator.size(), communicator.size() == 1 ? "" : "s",
                      communicator.node_count(), communicator.node_count() == 1 ? "" : "s"),
          "",
          {}};
  if (!launcher.problem.empty()) {
    f.health = Health::error;
    f.found = launcher.problem;
    f.mend = launcher.mend;
  } else if (launcher.ranks > 0 && launcher.ranks != communicator.size()) {
    f.health = Health::error;
    f.found = fmt::format("{} started {} ranks, but {} sees {}", launcher.name, launcher.ranks,
                          mpi_library(), communicator.size());
    f.mend = "the launcher and the library that train is linked with must be of one Open MPI";
  }
  return f;
}

std::vector<Check> check_cuda(const Needs& needs) {
  std::error_code error;
  const bool there = std::filesystem::exists("/proc/driver/nvidia/version", error);
  if (!there)
    return needs.cuda ? std::vector<Check>{{"CUDA",
                                            Health::error,
                                            "no NVIDIA driver is loaded",
                                            "install the driver, or hardware.backend=cpu",
                                            {}}}
                      : std::vector<Check>{};
  // Asked by name, so that this works in a build without CUDA.
  const auto version = [](const char* library, const char* function) {
    int number = 0;
    if (void* handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL)) {
      if (auto* ask = reinterpret_cast<int (*)(int*)>(dlsym(handle, function))) ask(&number);
      dlclose(handle);
    }
    return number;
  };
  const int driver = version("libcuda.so.1", "cuDriverGetVersion");
  int toolkit = 0;
  for (const char* library : {"libcudart.so.13", "libcudart.so.12", "libcudart.so"})
    if (toolkit == 0) toolkit = version(library, "cudaRuntimeGetVersion");
  const int nccl = version("libnccl.so.2", "ncclGetVersion");
  const auto dotted = [](int v, int base) {
    return v == 0 ? std::string("none") : fmt::format("{}.{}", v / base, v % base / (base / 100));
  };
  std::vector<Check> all;
  Check f{"CUDA",
          Health::ok,
          fmt::format("driver for CUDA {}, toolkit {}, NCCL {}", dotted(driver, 1000),
                      dotted(toolkit, 1000), dotted(nccl, 10000)),
          "",
          {}};
  if (driver == 0 || (toolkit > 0 && toolkit / 1000 > driver / 1000)) {
    f.health = Health::error;
    f.mend = "the driver must be at least as new as the toolkit";
  }
  all.push_back(f);
  for (const auto& entry : std::filesystem::directory_iterator("/sys/bus/pci/devices", error)) {
    if (first_line(entry.path() / "vendor") != "0x10de" ||
        first_line(entry.path() / "class").rfind("0x03", 0) != 0)
      continue;
    const std::string width = first_line(entry.path() / "current_link_width"),
                      most = first_line(entry.path() / "max_link_width");
    Check link{"device link",
               Health::ok,
               fmt::format("{}: {} × {} lanes (most: {} × {})", entry.path().filename().string(),
                           first_line(entry.path() / "current_link_speed"), width,
                           first_line(entry.path() / "max_link_speed"), most),
               "",
               {}};
    // The speed falls while a device idles; lanes do not.
    if (!width.empty() && std::atoi(width.c_str()) < std::atoi(most.c_str())) {
      link.health = Health::warning;
      link.mend = "fewer lanes than the device has: look at the slot, the riser, the BIOS";
    }
    all.push_back(link);
  }
  return all;
}

}  // namespace spillway
