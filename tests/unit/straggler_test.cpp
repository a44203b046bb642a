// Who holds the others up: from seconds of own work, not from steps that all take alike.
// links: spillway_train
#include "train/straggler.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/e2e/thread_communicator.h"

namespace spillway {
namespace {

TEST(Straggler, SlowIsHalfMoreThanTheMedian) {
  EXPECT_EQ(slow_ranks({1.0, 1.1, 1.0, 1.6}, 0.005), (std::vector<int>{3}));
  EXPECT_EQ(slow_ranks({1.0, 1.4, 1.0, 1.0}, 0.005), (std::vector<int>{}));
  EXPECT_EQ(slow_ranks({2.0, 1.0}, 0.005), (std::vector<int>{0}));
  EXPECT_EQ(slow_ranks({2e-3, 1e-3}, 0.005), (std::vector<int>{}));  // noise
  EXPECT_EQ(slow_ranks({3.0, 1.0, 3.0, 1.0, 1.0}, 0.005), (std::vector<int>{0, 2}));
}

TEST(Straggler, IsNamedOnAllRanksAndLessAndLessOften) {
  ThreadWorld world(3);
  std::vector<std::vector<int64_t>> told(3);
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r)
    threads.emplace_back([&, r] {
      ThreadCommunicator communicator(world, r);
      StragglerWatch watch(communicator);
      for (int64_t step = 1; step <= 16 * StragglerWatch::kSteps; ++step) {
        const std::string line = watch.step(r == 1 ? 0.5 : 0.1);
        if (line.empty()) continue;
        EXPECT_NE(line.find("straggler: rank 1 (host "), std::string::npos) << line;
        EXPECT_NE(line.find("works 500.0 ms a step, the median rank 100.0 ms"), std::string::npos);
        told[r].push_back(step / StragglerWatch::kSteps);
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(told[0], (std::vector<int64_t>{1, 3, 7, 15}));
  EXPECT_EQ(told[1], told[0]);
  EXPECT_EQ(told[2], told[0]);
}

}  // namespace
}  // namespace spillway
