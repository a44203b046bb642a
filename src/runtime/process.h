// Other processes of this machine, as /proc shows them.
#pragma once

#include <cstdint>

namespace spillway {

struct Process {
  char state = 0;          // as in /proc/PID/stat; 0: there is none
  int64_t start_time = 0;  // tells a process from a later one of the same number
};

// Async-signal-safe but for snprintf of integers; never throws.
Process look_at(int64_t pid);

// mpirun, its daemon on another host, or their successors in later versions.
bool is_open_mpi_launcher(int64_t pid);

// Open MPI's launchers wait without end for a host that cannot answer any more. A child of ours
// gives `launcher` (if it is one of theirs, and still the one that started at `start_time`)
// `patience` seconds to end by itself, then kills it. To be called right before _exit.
void see_off_launcher(int64_t launcher, int64_t start_time, double patience);

}  // namespace spillway
