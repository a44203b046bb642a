// Ranks as forked processes of a test: each has an emulated device of its own, drawn from a seed,
// and everything they say on standard error comes back with their exit codes.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/local_communicator.h"

namespace spillway {

// What the ranks share. One collective at a time, so a board of slots between two barriers.
struct Board {
  static constexpr int kMaxRanks = 4;
  static constexpr size_t kSlot = 1 << 20;
  std::atomic<int> arrived{0};
  std::atomic<bool> given_up{false};
  char slots[kMaxRanks][kSlot];
};

class ForkedCommunicator : public LocalCommunicator {
 public:
  ForkedCommunicator(int rank, int size, Board& board) : rank_(rank), size_(size), board_(board) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int ranks_on_node() const override { return size_; }
  void barrier() override {
    const int turn = board_.arrived.fetch_add(1) / size_ + 1;
    while (board_.arrived.load() < turn * size_) {
      if (board_.given_up.load()) fail(ExitCode::no_progress, "a peer gave up");
      sched_yield();
    }
  }
  void gather(const void* data, int64_t bytes, void* out) override {
    if (static_cast<size_t>(bytes) > Board::kSlot) internal_error("a gather of {} bytes", bytes);
    std::memcpy(board_.slots[rank_], data, static_cast<size_t>(bytes));
    barrier();
    for (int r = 0; r < size_; ++r)
      std::memcpy(static_cast<char*>(out) + r * bytes, board_.slots[r], static_cast<size_t>(bytes));
    barrier();
  }
  void broadcast(void* data, int64_t bytes, int root) override {
    std::vector<char> all(static_cast<size_t>(bytes * size_));
    gather(data, bytes, all.data());
    std::memcpy(data, all.data() + root * bytes, static_cast<size_t>(bytes));
  }
  int64_t max(int64_t value) override {
    std::vector<int64_t> all(static_cast<size_t>(size_));
    gather(&value, sizeof value, all.data());
    for (const int64_t v : all) value = std::max(value, v);
    return value;
  }
  int64_t min(int64_t value) override { return -max(-value); }
  void abort() noexcept override { board_.given_up.store(true); }

 private:
  int rank_, size_;
  Board& board_;
};

struct ForkedOutcome {
  std::vector<int> codes;  // exit code of each rank, or 128 + signal
  std::string said;
  bool clean() const {
    for (const int code : codes)
      if (code != 0) return false;
    return said.empty();
  }
};

// Runs body(rank, communicator) in `ranks` processes. An Error is printed and gives its exit code.
// Whoever still runs `patience` seconds after the first failure, or 120 after the start, is killed.
inline ForkedOutcome run_forked(int ranks, uint64_t seed, int patience,
                                const std::function<void(int, Communicator&)>& body) {
  void* shared =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) internal_error("no memory for the ranks' board");
  Board* board = new (shared) Board;
  int fds[2];
  if (pipe(fds) != 0) internal_error("no pipe");
  std::vector<pid_t> pids;
  std::fflush(nullptr);
  for (int r = 0; r < ranks; ++r) {
    const pid_t pid = fork();
    if (pid == 0) {
      dup2(fds[1], STDERR_FILENO);
      close(fds[0]);
      close(fds[1]);
      setenv("SPILLWAY_EMULATED_SEED", std::to_string(seed * 16 + static_cast<uint64_t>(r)).c_str(),
             1);
      setenv("OMPI_COMM_WORLD_RANK", std::to_string(r).c_str(), 1);
      setenv("SPILLWAY_EMULATED_PATIENCE", "5", 1);  // seconds, with a peer that sends nothing
      int code = 0;
      try {
        ForkedCommunicator communicator(r, ranks, *board);
        body(r, communicator);
      } catch (const Error& e) {
        std::fprintf(stderr, "rank %d: %s\n", r, e.what());
        code = static_cast<int>(e.code());
      }
      if (code != 0) board->given_up.store(true);
      std::exit(code);  // the checker's own exit code, if it has something to report
    }
    pids.push_back(pid);
  }
  close(fds[1]);
  ForkedOutcome outcome;
  outcome.codes.assign(pids.size(), -1);
  fcntl(fds[0], F_SETFL, O_NONBLOCK);
  size_t running = pids.size();
  int left_ms = 120'000;
  while (running > 0) {
    pollfd fd{fds[0], POLLIN, 0};
    poll(&fd, 1, 5);
    char text[4096];
    for (ssize_t n; (n = read(fds[0], text, sizeof text)) > 0;)
      outcome.said.append(text, static_cast<size_t>(n));
    for (size_t r = 0; r < pids.size(); ++r) {
      int status = 0;
      if (outcome.codes[r] >= 0 || waitpid(pids[r], &status, WNOHANG) != pids[r]) continue;
      outcome.codes[r] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      --running;
      if (outcome.codes[r] != 0) left_ms = std::min(left_ms, patience * 1000);
    }
    left_ms -= 5;
    if (left_ms < 0)
      for (size_t r = 0; r < pids.size(); ++r)
        if (outcome.codes[r] < 0) kill(pids[r], SIGKILL);
  }
  char text[4096];
  for (ssize_t n; (n = read(fds[0], text, sizeof text)) > 0;)
    outcome.said.append(text, static_cast<size_t>(n));
  close(fds[0]);
  munmap(shared, sizeof(Board));
  return outcome;
}

}  // namespace spillway
