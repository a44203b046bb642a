#include "runtime/launch.h"

#include <dirent.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace spillway {

namespace {

cpu_set_t current_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_SET(0, &set);
  return set;
}

// Every core that the container or job allows: the kernel cuts a wish for all down to those.
cpu_set_t allowed_cores(const cpu_set_t& current) {
  cpu_set_t all;
  std::memset(&all, 0xFF, sizeof all);
  if (sched_setaffinity(0, sizeof all, &all) != 0) return current;
  const cpu_set_t allowed = current_cores();
  sched_setaffinity(0, sizeof current, &current);
  return allowed;
}

// All threads of this process: those that libraries started before must not stay on one core.
void bind_all_threads(const cpu_set_t& set) {
  DIR* tasks = opendir("/proc/self/task");
  if (!tasks) {
    sched_setaffinity(0, sizeof set, &set);
    return;
  }
  while (const dirent* entry = readdir(tasks)) {
    const int thread = std::atoi(entry->d_name);
    if (thread > 0) sched_setaffinity(thread, sizeof set, &set);
  }
  closedir(tasks);
}

}  // namespace

Launcher detect_launcher() {
  const auto number = [](const char* name) {
    const char* value = std::getenv(name);
    return value ? std::atoi(value) : 0;
  };
  Launcher l;
  if (std::getenv("OMPI_COMM_WORLD_SIZE")) {
    l.name = "Open MPI's mpirun";
    l.ranks = std::max(1, number("OMPI_COMM_WORLD_SIZE"));
    l.mpi = l.ranks > 1;
    return l;
  }
  if (std::getenv("PMIX_RANK")) {
    const bool slurm = std::getenv("SLURM_STEP_NUM_TASKS") != nullptr;
    l.name = slurm ? "srun --mpi=pmix" : "a PMIx launcher";
    l.ranks = number("SLURM_STEP_NUM_TASKS");
    l.mpi = l.ranks != 1;
    return l;
  }
  if (std::getenv("SLURM_PROCID") && number("SLURM_STEP_NUM_TASKS") > 1) {
    l.name = "srun without PMIx";
    l.problem = fmt::format("srun started {} tasks that cannot find each other",
                            number("SLURM_STEP_NUM_TASKS"));
    l.mend = "use srun --mpi=pmix";
    return l;
  }
  // Hydra (MPICH, Intel MPI) and MVAPICH; each rank would train the whole run by itself.
  const int foreign =
      std::max({number("PMI_SIZE"), number("MPI_LOCALNRANKS"), number("MV2_COMM_WORLD_SIZE")});
  if (foreign > 1) {
    l.name = "another MPI's launcher";
    l.problem = fmt::format(
        "the launcher of another MPI (MPICH, Intel MPI, MVAPICH) started {} processes that cannot "
        "find each other",
        foreign);
    l.mend = "start train with the mpirun of Open MPI, or srun --mpi=pmix";
    return l;
  }
  l.name = "alone";
  return l;
}

CoreShare share_cores(int wanted, int bound, int node, int ranks_on_node, bool launched) {
  const int share = std::max(1, node / std::max(1, ranks_on_node));
  if (!launched) return {wanted > 0 ? wanted : std::max(1, std::min(bound, share)), false};
  const int threads = wanted > 0 ? wanted : share;
  return {threads, bound < std::min(threads, node)};
}

ClaimedCores claim_cores(int threads_wanted, const Communicator& communicator) {
  const cpu_set_t bound = current_cores();
  const cpu_set_t node = allowed_cores(bound);
  const bool launched = std::getenv("OMPI_COMM_WORLD_SIZE") || std::getenv("PMIX_RANK");
  const int ranks = communicator.ranks_on_node();
  const CoreShare share =
      share_cores(threads_wanted, CPU_COUNT(&bound), CPU_COUNT(&node), ranks, launched);
  if (!share.widen) return {share.threads, ""};
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &node)) cores.push_back(core);
  const int count = static_cast<int>(cores.size());
  const int width = std::min(count, std::max(share.threads, count / ranks));
  // Shares that do not fit beside each other wrap around and overlap.
  const int first = communicator.rank_on_node() * width;
  cpu_set_t mine;
  CPU_ZERO(&mine);
  for (int i = 0; i < width; ++i) CPU_SET(cores[(first + i) % count], &mine);
  bind_all_threads(mine);
  return {
      share.threads,
      fmt::format("the launcher bound rank {} to {} of {} cores; using {} for {} threads (mpirun "
                  "--bind-to none avoids this)",
                  communicator.rank(), CPU_COUNT(&bound), count, width, share.threads)};
}

}  // namespace spillway
