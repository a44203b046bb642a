// What the ranks of an emulated NCCL communicator share: one memory file, found through the process
// that made it, so that nothing has a name and nothing is left behind when ranks are killed. For
// every ordered pair of ranks a queue of messages, whose bytes lie in the sender's outbox until
// they have been taken. A lock on a byte of the file shows whether a rank still lives.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace spillway::emulated {

constexpr int kMaxRanks = 16;
constexpr uint64_t kMessages = 64;                // of one pair, in flight
constexpr size_t kOutboxBytes = size_t{1} << 30;  // address space; memory only where it is touched

struct Message {
  uint64_t offset = 0, bytes = 0;  // in the outbox
  int32_t type = 0;                // ncclDataType_t
  char instruction[108] = {};      // of the sender
};

struct Queue {
  std::atomic<uint64_t> posted, taken;
  Message messages[kMessages];
  Message& at(uint64_t i) { return messages[i % kMessages]; }
};

enum class RankState : int { absent, live, left, aborted, died };

class Ranks {
 public:
  // Where a file lies; every rank gets a copy.
  struct Address {
    uint64_t magic = 0;
    pid_t process = 0;
    int file = -1;
  };
  static bool create(Address& address);

  // Takes the place of `rank`. nullptr: the file is gone, its size differs or the place is taken.
  static Ranks* join(const Address& address, int rank, int size);
  ~Ranks();  // the lock goes with it
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  void declare(RankState own);
  RankState state(int rank) const;
  Queue& queue(int from, int to);
  char* outbox(int rank);

 private:
  struct Shared;
  Ranks() = default;
  int rank_ = 0, size_ = 0, file_ = -1;
  Shared* shared_ = nullptr;
  size_t mapped_ = 0;
};

}  // namespace spillway::emulated
