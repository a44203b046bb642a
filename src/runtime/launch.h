// The cores of a rank: how many threads it may use, and a way out of a launcher's narrow binding.
#pragma once

#include <string>

#include "runtime/device.h"

namespace spillway {

// How this process was started, as its environment tells.
struct Launcher {
  std::string name;     // "alone", "Open MPI's mpirun", "srun --mpi=pmix", …
  int ranks = 1;        // 0: only MPI itself knows
  bool mpi = false;     // it is one of several ranks, or may be: MPI must be asked
  std::string problem;  // not "": ranks that would each believe to be alone, and what to do
  std::string mend;
};
Launcher detect_launcher();

struct CoreShare {
  int threads = 1;     // compute threads of this rank
  bool widen = false;  // the rank must first be given its share of the node's cores
};

// A rank may use `bound` of the `node` cores it could have, which it shares with `ranks_on_node` -
// 1 others; `wanted` threads (0: its share of the node). Only what a launcher bound is widened: a
// binding that the user chose stays.
CoreShare share_cores(int wanted, int bound, int node, int ranks_on_node, bool launched);

struct ClaimedCores {
  int threads = 1;
  std::string note;  // one line for the user where the binding was widened, else empty
};

// Call before threads that compute are started. `threads_wanted` 0: this rank's share of the node.
ClaimedCores claim_cores(int threads_wanted, const Communicator& communicator);

}  // namespace spillway
