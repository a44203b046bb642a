// The watchdog: ranks are forked children that share a host, or hosts told apart by their folder of
// shared memory; the parent kills, stops or signals one and reads what the others say and how they
// end. Outcomes are waited for, however long they take.
// links: spillway_runtime_cpu
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "runtime/cpu/cpu_device.h"
#include "runtime/local_communicator.h"
#include "runtime/shared_segment.h"
#include "runtime/watchdog.h"

namespace spillway {
namespace {

// What forked ranks share with their parent.
struct Board {
  std::atomic<int> arrived, ready, gate;
  char shown[4][2048];  // by rank
};

class ForkedCommunicator : public LocalCommunicator {
 public:
  ForkedCommunicator(int rank, int size, Board* board) : rank_(rank), size_(size), board_(board) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int ranks_on_node() const override { return size_; }
  std::string broadcast_text(const std::string&, int) override {
    return "test" + std::to_string(getppid());
  }
  void gather(const void* data, int64_t bytes, void* out) override {
    ASSERT_LE(bytes, static_cast<int64_t>(sizeof board_->shown[0]));
    std::memcpy(board_->shown[rank_], data, bytes);
    barrier();
    for (int r = 0; r < size_; ++r)
      std::memcpy(static_cast<char*>(out) + r * bytes, board_->shown[r], bytes);
    barrier();
  }
  void broadcast(void* data, int64_t bytes, int root) override {
    std::vector<char> all(bytes * size_);
    gather(data, bytes, all.data());
    std::memcpy(data, all.data() + root * bytes, bytes);
  }
  void barrier() override {
    const int all = (board_->arrived.fetch_add(1) / size_ + 1) * size_;
    while (board_->arrived.load() < all) usleep(1000);
  }

 private:
  int rank_, size_;
  Board* board_;
};

struct Ended {
  int code = -1, signal = 0;
};

class Ranks {
 public:
  using Body = std::function<void(int rank, Watchdog&, Board&)>;

  using Adapt = std::function<void(int rank, WatchdogOptions&)>;

  Ranks(int size, WatchdogOptions options, const Body& body, const Adapt& adapt = {}) {
    board_ = new (mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                       -1, 0)) Board{};
    int fds[2];
    EXPECT_EQ(pipe(fds), 0);
    for (int r = 0; r < size; ++r) {
      const pid_t pid = fork();
      if (pid == 0) {
        close(fds[0]);
        dup2(fds[1], STDERR_FILENO);
        close(fds[1]);
        ForkedCommunicator communicator(r, size, board_);
        if (adapt) adapt(r, options);
        {
          Watchdog watchdog(communicator, options);
          board_->ready.fetch_add(1);
          body(r, watchdog, *board_);
        }
        _exit(0);
      }
      pids_.push_back(pid);
    }
    close(fds[1]);
    said_fd_ = fds[0];
    while (board_->ready.load() < size) usleep(1000);
  }
  ~Ranks() {
    close(said_fd_);
    munmap(board_, sizeof(Board));
  }
  pid_t pid(int rank) const { return pids_[rank]; }
  Board& board() { return *board_; }
  void signal(int rank, int number) { kill(pids_[rank], number); }
  Ended wait(int rank) {
    int status = 0;
    while (waitpid(pids_[rank], &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFEXITED(status)) return {WEXITSTATUS(status), 0};
    return {-1, WTERMSIG(status)};
  }
  // All that the ranks wrote to standard error, once they have ended.
  std::string said() {
    std::string text;
    char part[4096];
    for (ssize_t n; (n = read(said_fd_, part, sizeof part)) > 0;) text.append(part, n);
    return text;
  }

 private:
  std::vector<pid_t> pids_;
  Board* board_;
  int said_fd_;
};

WatchdogOptions quick() {
  WatchdogOptions options;
  options.tick = 0.02;
  options.stopped_after = 0.3;
  options.failed_patience = 0.3;
  return options;
}

void walk_steps_forever(int, Watchdog& watchdog, Board&) {
  for (int64_t step = 1;; ++step) {
    watchdog.enter(Phase::step, 100 + step % 2);
    usleep(1000);
  }
}

long lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

TEST(Watchdog, AKilledPeerIsNamed) {
  Ranks ranks(3, quick(), walk_steps_forever);
  ranks.signal(1, SIGKILL);
  EXPECT_EQ(ranks.wait(0).code, 4);
  EXPECT_EQ(ranks.wait(2).code, 4);
  EXPECT_EQ(ranks.wait(1).signal, SIGKILL);
  const std::string said = ranks.said();
  EXPECT_NE(said.find("peer lost: rank 1 (host "), std::string::npos) << said;
  EXPECT_NE(said.find("pid " + std::to_string(ranks.pid(1)) + ") died at step 10"),
            std::string::npos)
      << said;
  EXPECT_EQ(lines(said), 1) << said;
}

TEST(Watchdog, AStoppedPeerIsNamed) {
  Ranks ranks(2, quick(), walk_steps_forever);
  ranks.signal(0, SIGSTOP);
  EXPECT_EQ(ranks.wait(1).code, 4);
  ranks.signal(0, SIGKILL);
  ranks.wait(0);
  const std::string said = ranks.said();
  EXPECT_NE(said.find("peer lost: rank 0"), std::string::npos) << said;
  EXPECT_NE(said.find("has been stopped"), std::string::npos) << said;
}

TEST(Watchdog, ATermAfterADeathIsNotPreemption) {
  WatchdogOptions options = quick();
  options.tick = 60;  // only the signal makes it look
  Ranks ranks(2, options, [](int, Watchdog& watchdog, Board&) {
    while (!watchdog.stop_requested()) usleep(1000);
    watchdog.leave(ExitCode::resume_me);
    _exit(75);
  });
  ranks.signal(0, SIGKILL);
  siginfo_t dead;  // dead, but not reaped yet: as its launcher may leave it for a while
  ASSERT_EQ(waitid(P_PID, ranks.pid(0), &dead, WEXITED | WNOWAIT), 0);
  ranks.signal(1, SIGTERM);
  EXPECT_EQ(ranks.wait(1).code, 4);
  ranks.wait(0);
  EXPECT_NE(ranks.said().find("peer lost: rank 0"), std::string::npos);
}

TEST(Watchdog, ATermOrUsr1AmongTheLivingAsksToStop) {
  for (int number : {SIGTERM, SIGUSR1, SIGINT}) {
    Ranks ranks(2, quick(), [](int rank, Watchdog& watchdog, Board& board) {
      watchdog.enter(Phase::step, 1);
      if (rank == 0) {
        while (!watchdog.stop_requested()) {
          watchdog.progress();
          usleep(1000);
        }
        watchdog.leave(ExitCode::resume_me);
        _exit(75);
      }
      while (board.gate == 0) {
        watchdog.progress();
        usleep(1000);
      }
      if (watchdog.stop_requested()) _exit(1);  // the signal was for the other
    });
    ranks.signal(0, number);
    EXPECT_EQ(ranks.wait(0).code, 75);
    usleep(200'000);  // the peer must not mind a rank that has finished
    ranks.board().gate = 1;
    EXPECT_EQ(ranks.wait(1).code, 0);
    EXPECT_EQ(ranks.said().empty(), number != SIGINT) << ranks.said();
  }
}

TEST(Watchdog, APeerThatFailedIsNamedWithItsCode) {
  Ranks ranks(2, quick(), [](int rank, Watchdog& watchdog, Board& board) {
    watchdog.enter(Phase::saving, 7);
    if (rank == 0) {
      watchdog.leave(ExitCode::does_not_fit);
      _exit(3);
    }
    walk_steps_forever(rank, watchdog, board);
  });
  EXPECT_EQ(ranks.wait(0).code, 3);
  EXPECT_EQ(ranks.wait(1).code, 4);
  const std::string said = ranks.said();
  EXPECT_NE(said.find("ended with exit code 3 at step 7"), std::string::npos) << said;
}

Board* board_of_kernel = nullptr;
void stuck(const KernelArgs&) {
  while (board_of_kernel->gate == 0) usleep(1000);
}

void run_stuck_kernel(Watchdog& watchdog, Board& board, float planned_us) {
  board_of_kernel = &board;
  CpuDevice device([](OpKind) -> Kernel { return stuck; }, nullptr);
  Instr instr;
  instr.name = "blk.3.qkv.forward";
  instr.planned_us = planned_us;
  watchdog.watch(&device);
  watchdog.enter(Phase::step, 12);
  device.launch(Lane::compute, OpKind::add, KernelArgs(), &instr);
  device.synchronise_all();
  watchdog.watch(nullptr);
}

TEST(Watchdog, AStuckInstructionEndsEvenASingleRank) {
  WatchdogOptions options = quick();
  options.stuck_after = 0.3;
  Ranks ranks(1, options,
              [](int, Watchdog& watchdog, Board& board) { run_stuck_kernel(watchdog, board, 0); });
  EXPECT_EQ(ranks.wait(0).code, 4);
  const std::string said = ranks.said();
  EXPECT_NE(said.find("no progress for"), std::string::npos) << said;
  EXPECT_NE(said.find("at step 12 in instruction blk.3.qkv.forward"), std::string::npos) << said;
}

TEST(Watchdog, AnInstructionThatIsPlannedToTakeLongMay) {
  WatchdogOptions options = quick();
  options.stuck_after = 0.1;
  Ranks ranks(1, options, [](int, Watchdog& watchdog, Board& board) {
    run_stuck_kernel(watchdog, board, 30e6f);
  });
  usleep(600'000);
  ranks.board().gate = 1;
  EXPECT_EQ(ranks.wait(0).code, 0);
  EXPECT_EQ(ranks.said(), "");
}

// A device whose instruction no longer runs and is not completed yet, as a look may find it between
// the two: here for many looks.
class DeviceBetween : public CpuDevice {
 public:
  explicit DeviceBetween(Board& board)
      : CpuDevice([](OpKind) -> Kernel { return nullptr; }, nullptr), board_(board) {
    instr_.name = "blk.3.qkv.forward";
    instr_.planned_us = 30e6f;
  }
  Ticket completed(Lane) const override { return board_.gate >= 2; }
  const Instr* running(Lane) const override { return board_.gate == 0 ? &instr_ : nullptr; }

 private:
  Board& board_;
  Instr instr_;
};

TEST(Watchdog, AnEndedInstructionHasItsPatienceUntilItIsCompleted) {
  WatchdogOptions options = quick();
  options.stuck_after = 0.1;
  for (const bool completes : {true, false}) {
    Ranks ranks(1, options, [](int, Watchdog& watchdog, Board& board) {
      DeviceBetween device(board);
      watchdog.watch(&device);
      watchdog.enter(Phase::step, 12);
      while (board.gate < 3) usleep(1000);
      watchdog.watch(nullptr);
    });
    usleep(400'000);
    ranks.board().gate = 1;
    usleep(400'000);
    EXPECT_EQ(waitpid(ranks.pid(0), nullptr, WNOHANG), 0);
    // Once it is completed the patience is over.
    ranks.board().gate = completes ? 3 : 2;
    EXPECT_EQ(ranks.wait(0).code, completes ? 0 : 4);
  }
}

TEST(Watchdog, DeclaredPhasesHaveTheirOwnDeadlines) {
  for (Phase phase : {Phase::starting, Phase::saving, Phase::evaluating}) {
    for (bool late : {false, true}) {
      WatchdogOptions options = quick();
      options.stuck_after = 0.1;
      options.starting_deadline = phase == Phase::starting && late ? 0.2 : 100;
      options.saving_deadline = phase == Phase::saving && late ? 0.2 : 100;
      options.evaluating_deadline = phase == Phase::evaluating && late ? 0.2 : 100;
      Ranks ranks(1, options, [&](int, Watchdog& watchdog, Board& board) {
        watchdog.enter(phase, 5);
        while (board.gate == 0) usleep(1000);
      });
      usleep(400'000);
      if (!late) ranks.board().gate = 1;
      EXPECT_EQ(ranks.wait(0).code, late ? 4 : 0) << static_cast<int>(phase);
    }
  }
}

// A folder for each host of a test.
class Hosts {
 public:
  explicit Hosts(std::vector<int> host_of) : host_of_(std::move(host_of)) {
    path_ = std::filesystem::temp_directory_path() / ("spillway-hosts-" + std::to_string(getpid()));
    for (const int host : host_of_)
      std::filesystem::create_directories(path_ / std::to_string(host));
  }
  ~Hosts() { std::filesystem::remove_all(path_); }
  Ranks::Adapt adapt() const {
    return [this](int rank, WatchdogOptions& options) {
      options.folder = path_ / std::to_string(host_of_[rank]);
    };
  }

 private:
  std::vector<int> host_of_;
  std::filesystem::path path_;
};

TEST(Watchdog, AHostThatFallsSilentIsNamed) {
  const Hosts hosts({0, 1, 1, 2});
  WatchdogOptions options = quick();
  options.host_silent_after = 1;
  Ranks ranks(4, options, walk_steps_forever, hosts.adapt());
  usleep(500'000);  // a few datagrams have told where everyone stands
  ranks.signal(3, SIGSTOP);
  for (int rank : {0, 1, 2}) EXPECT_EQ(ranks.wait(rank).code, 4) << rank;
  ranks.signal(3, SIGKILL);
  ranks.wait(3);
  const std::string said = ranks.said();
  EXPECT_NE(said.find("peer lost: rank 3 (host "), std::string::npos) << said;
  EXPECT_NE(said.find("pid " + std::to_string(ranks.pid(3)) + ") has been silent for 1."),
            std::string::npos)
      << said;
  EXPECT_NE(said.find(" at step 10"), std::string::npos) << said;
}

TEST(Watchdog, ADeathOnAnotherHostIsToldAtOnce) {
  const Hosts hosts({0, 1, 1});
  WatchdogOptions options = quick();
  options.host_silent_after = 600;  // what is told does not wait for silence
  Ranks ranks(3, options, walk_steps_forever, hosts.adapt());
  usleep(500'000);
  ranks.signal(2, SIGKILL);
  EXPECT_EQ(ranks.wait(1).code, 4);
  EXPECT_EQ(ranks.wait(0).code, 4);
  ranks.wait(2);
  const std::string line = "pid " + std::to_string(ranks.pid(2)) + ") died at step 10";
  const std::string said = ranks.said();
  const size_t first = said.find(line);
  ASSERT_NE(first, std::string::npos) << said;
  EXPECT_NE(said.find(line, first + 1), std::string::npos) << said;  // by rank 0's host too
}

TEST(Watchdog, AFailureOnAnotherHostIsNamedWithItsCode) {
  const Hosts hosts({0, 1});
  Ranks ranks(
      2, quick(),
      [](int rank, Watchdog& watchdog, Board& board) {
        watchdog.enter(Phase::saving, 7);
        if (rank == 0) walk_steps_forever(rank, watchdog, board);
        usleep(300'000);
        watchdog.leave(ExitCode::internal);
      },
      hosts.adapt());
  EXPECT_EQ(ranks.wait(1).code, 0);
  EXPECT_EQ(ranks.wait(0).code, 4);
  const std::string said = ranks.said();
  EXPECT_NE(said.find("rank 1"), std::string::npos) << said;
  EXPECT_NE(said.find("ended with exit code 1 at step 7"), std::string::npos) << said;
}

TEST(Watchdog, AHostThatHasFinishedMayBeSilent) {
  const Hosts hosts({0, 1});
  WatchdogOptions options = quick();
  options.host_silent_after = 0.5;
  Ranks ranks(
      2, options,
      [](int rank, Watchdog& watchdog, Board& board) {
        watchdog.enter(Phase::step, 1);
        if (rank == 0)
          while (board.gate == 0) {
            watchdog.progress();
            usleep(1000);
          }
        else
          usleep(300'000);
      },
      hosts.adapt());
  EXPECT_EQ(ranks.wait(1).code, 0);
  usleep(1'500'000);
  ranks.board().gate = 1;
  EXPECT_EQ(ranks.wait(0).code, 0);
  EXPECT_EQ(ranks.said(), "");
}

TEST(Watchdog, ATermWhileAHostIsGoneIsNotPreemption) {
  const Hosts hosts({0, 1});
  Ranks ranks(
      2, quick(),
      [](int, Watchdog& watchdog, Board&) {
        watchdog.enter(Phase::step, 3);
        while (!watchdog.stop_requested()) {
          watchdog.progress();
          usleep(1000);
        }
        watchdog.leave(ExitCode::resume_me);
        _exit(75);
      },
      hosts.adapt());
  usleep(500'000);
  ranks.signal(1, SIGKILL);  // nobody is left there to tell
  ranks.signal(0, SIGTERM);
  EXPECT_EQ(ranks.wait(0).code, 4);
  ranks.wait(1);
  const std::string said = ranks.said();
  EXPECT_NE(said.find("peer lost: rank 1"), std::string::npos) << said;
}

TEST(Watchdog, WhoeverWaitsForASlowSaveIsPatient) {
  for (const int other : {0, 1}) {
    const Hosts hosts({0, other});
    WatchdogOptions options = quick();
    options.stuck_after = 0.5;
    Ranks ranks(
        2, options,
        [](int rank, Watchdog& watchdog, Board& board) {
          watchdog.enter(rank == 0 ? Phase::step : Phase::saving, 5);
          while (board.gate == 0) usleep(1000);
        },
        hosts.adapt());
    usleep(1'500'000);
    ranks.board().gate = 1;
    EXPECT_EQ(ranks.wait(0).code, 0);
    EXPECT_EQ(ranks.wait(1).code, 0);
    EXPECT_EQ(ranks.said(), "");
  }
}

TEST(Watchdog, RanksWhoseLauncherDiesEnd) {
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);  // orphans become ours
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  const pid_t launcher = fork();
  if (launcher == 0) {
    Ranks ranks(2, quick(), walk_steps_forever);
    const pid_t pids[2] = {ranks.pid(0), ranks.pid(1)};
    if (write(fds[1], pids, sizeof pids) != sizeof pids) _exit(1);
    for (;;) pause();
  }
  pid_t pids[2];
  ASSERT_EQ(read(fds[0], pids, sizeof pids), static_cast<ssize_t>(sizeof pids));
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  for (const pid_t pid : pids) {
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 4);
  }
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST(Watchdog, LeavesNothingBehind) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("spillway-watchdog-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const auto stale = folder / ("spillway-" + std::to_string(getuid()) + "-old");
  close(open(stale.c_str(), O_CREAT | O_WRONLY, 0600));
  const auto living = folder / ("spillway-" + std::to_string(getuid()) + "-living");
  const int held = open(living.c_str(), O_CREAT | O_WRONLY, 0600);
  ASSERT_EQ(flock(held, LOCK_SH), 0);  // as a run does that is just starting
  WatchdogOptions options = quick();
  options.folder = folder;
  Ranks ranks(2, options, walk_steps_forever);
  ranks.signal(0, SIGKILL);
  ranks.wait(0);
  ranks.wait(1);
  EXPECT_TRUE(std::filesystem::exists(living));
  EXPECT_FALSE(std::filesystem::exists(stale));
  close(held);
  std::filesystem::remove(living);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

TEST(SharedSegment, OnlyWhatNoProcessUsesIsRemoved) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("spillway-segments-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const auto file = [&](const std::string& name) {
    const int fd = open((folder / name).c_str(), O_CREAT | O_RDWR, 0600);
    EXPECT_EQ(ftruncate(fd, 4096), 0);
    return fd;
  };
  const int opened = file("vader_opened"), mapped = file("vader_mapped");
  close(file("vader_left"));
  close(file("other"));
  void* memory = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, mapped, 0);
  close(mapped);
  remove_unused_segments(folder, "vader_");
  EXPECT_TRUE(std::filesystem::exists(folder / "vader_opened"));
  EXPECT_TRUE(std::filesystem::exists(folder / "vader_mapped"));
  EXPECT_TRUE(std::filesystem::exists(folder / "other"));
  EXPECT_FALSE(std::filesystem::exists(folder / "vader_left"));
  munmap(memory, 4096);
  close(opened);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace spillway
