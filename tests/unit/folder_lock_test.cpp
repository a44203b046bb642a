// One holder at a time, named to the others; free again however the holder ends.
// links: spillway_base
#include "base/folder_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"

namespace spillway {
namespace {

class Lock : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = "/tmp/spillway_lock_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string refused() {
    try {
      const FolderLock lock(folder_);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::bad_input);
      return e.what();
    }
    return "";
  }
  std::string folder_;
};

TEST_F(Lock, ASecondHolderIsToldWhoTheFirstIs) {
  auto first = std::make_unique<FolderLock>(folder_);
  EXPECT_EQ(first->warning(), "");
  const std::string said = refused();
  EXPECT_NE(said.find(folder_), std::string::npos) << said;
  EXPECT_NE(said.find("pid " + std::to_string(getpid())), std::string::npos) << said;
  first.reset();
  EXPECT_EQ(refused(), "");
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(Lock, EndsWithItsProcess) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const FolderLock lock(folder_);
    if (write(ready[1], "x", 1) == 1) pause();
    _exit(1);
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_NE(refused().find("pid " + std::to_string(child)), std::string::npos);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/.lock"));
  EXPECT_EQ(refused(), "");
  close(ready[0]);
  close(ready[1]);
}

TEST_F(Lock, ManyThatComeAndGoNeverHoldItTogether) {
  std::atomic<int> holders{0}, held{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        try {
          const FolderLock lock(folder_);
          EXPECT_EQ(holders.fetch_add(1), 0);
          ++held;
          holders.fetch_sub(1);
        } catch (const Error&) {
        }
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_GT(held, 100);
}

TEST_F(Lock, AFolderThatCannotHoldItIsNamed) {
  folder_ += "/absent";
  EXPECT_NE(refused().find(folder_ + "/.lock"), std::string::npos);
}

}  // namespace
}  // namespace spillway
