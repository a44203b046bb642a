// A rank's share of its node's cores.
// links: spillway_runtime
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <thread>

#include "runtime/launch.h"
#include "runtime/local_communicator.h"

namespace spillway {
namespace {

TEST(Launch, CoresAreSharedAndNarrowBindingsWidened) {
  auto is = [](CoreShare share, int threads, bool widen) {
    EXPECT_EQ(share.threads, threads);
    EXPECT_EQ(share.widen, widen);
  };
  // wanted, bound, node, ranks on the node, launched
  is(share_cores(0, 8, 8, 2, true), 4, false);    // --bind-to none
  is(share_cores(0, 1, 8, 2, true), 4, true);     // mpirun's default
  is(share_cores(0, 1, 2, 2, true), 1, false);    // one core each is all there is
  is(share_cores(0, 4, 8, 2, true), 4, false);    // --map-by slot:PE=4
  is(share_cores(2, 1, 8, 8, true), 2, true);     // asked for more than the binding
  is(share_cores(16, 8, 8, 1, true), 16, false);  // more threads than cores: as asked
  is(share_cores(0, 1, 8, 1, false), 1, false);   // taskset by the user
  is(share_cores(3, 1, 8, 1, false), 3, false);
  is(share_cores(0, 2, 2, 4, true), 1, false);  // more ranks than cores
}

int cores_of_this_thread() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : -1;
}

TEST(Launch, ALaunchersBindingIsWidenedAndAUsersIsNot) {
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  const int node = CPU_COUNT(&all);
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core)
    if (CPU_ISSET(core, &all)) CPU_SET(core, &one);
  LocalCommunicator communicator;
  unsetenv("PMIX_RANK");
  unsetenv("OMPI_COMM_WORLD_SIZE");
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  ClaimedCores claimed = claim_cores(0, communicator);
  EXPECT_EQ(claimed.threads, 1);
  EXPECT_EQ(claimed.note, "");
  EXPECT_EQ(cores_of_this_thread(), 1);
  setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
  claimed = claim_cores(0, communicator);
  EXPECT_GE(claimed.threads, node);
  EXPECT_GE(cores_of_this_thread(), node);
  EXPECT_EQ(claimed.note.empty(), cores_of_this_thread() == 1) << claimed.note;
  std::thread([&] { EXPECT_GE(cores_of_this_thread(), node); }).join();
  unsetenv("OMPI_COMM_WORLD_SIZE");
}

}  // namespace
}  // namespace spillway
