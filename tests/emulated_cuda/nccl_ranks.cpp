#include "nccl_ranks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>

namespace spillway::emulated {

// All zeros in a new file.
struct Ranks::Shared {
  std::atomic<int> size;
  std::atomic<int> states[kMaxRanks];
  Queue queues[kMaxRanks][kMaxRanks];  // from, to
};

namespace {

constexpr uint64_t kMagic = 0x5370696c6c4e4343;
constexpr size_t kPage = 4096;

struct flock byte_of(int rank) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

bool Ranks::create(Address& address) {
  const size_t head = (sizeof(Shared) + kPage - 1) / kPage * kPage;
  const int file = memfd_create("emulated nccl", MFD_CLOEXEC);
  if (file < 0) return false;
  if (ftruncate(file, static_cast<off_t>(head + kMaxRanks * kOutboxBytes)) != 0) {
    close(file);
    return false;
  }
  address = {kMagic, getpid(), file};
  return true;
}

Ranks* Ranks::join(const Address& address, int rank, int size) {
  if (address.magic != kMagic || size < 1 || size > kMaxRanks || rank < 0 || rank >= size)
    return nullptr;
  std::unique_ptr<Ranks> made(new Ranks);
  made->rank_ = rank;
  made->size_ = size;
  made->file_ = address.process == getpid()
                    ? address.file
                    : open(fmt::format("/proc/{}/fd/{}", address.process, address.file).c_str(),
                           O_RDWR | O_CLOEXEC);
  if (made->file_ < 0) return nullptr;
  const size_t head = (sizeof(Shared) + kPage - 1) / kPage * kPage;
  made->mapped_ = head + static_cast<size_t>(size) * kOutboxBytes;
  void* memory = mmap(nullptr, made->mapped_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                      made->file_, 0);
  if (memory == MAP_FAILED) return nullptr;
  made->shared_ = static_cast<Shared*>(memory);
  int none = 0;
  if (!made->shared_->size.compare_exchange_strong(none, size) && none != size) return nullptr;
  struct flock lock = byte_of(rank);
  if (fcntl(made->file_, F_SETLK, &lock) != 0) return nullptr;
  int absent = static_cast<int>(RankState::absent);
  if (!made->shared_->states[rank].compare_exchange_strong(absent,
                                                           static_cast<int>(RankState::live)))
    return nullptr;
  return made.release();
}

Ranks::~Ranks() {
  if (shared_) munmap(shared_, mapped_);
  if (file_ >= 0) close(file_);
}

void Ranks::declare(RankState own) { shared_->states[rank_].store(static_cast<int>(own)); }

RankState Ranks::state(int rank) const {
  const auto told = static_cast<RankState>(shared_->states[rank].load());
  if (told != RankState::live || rank == rank_) return told;
  struct flock lock = byte_of(rank);
  if (fcntl(file_, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK) return RankState::live;
  // It may have said good-bye between the two looks.
  const auto now = static_cast<RankState>(shared_->states[rank].load());
  return now == RankState::live ? RankState::died : now;
}

Queue& Ranks::queue(int from, int to) { return shared_->queues[from][to]; }

char* Ranks::outbox(int rank) {
  const size_t head = (sizeof(Shared) + kPage - 1) / kPage * kPage;
  return reinterpret_cast<char*>(shared_) + head + static_cast<size_t>(rank) * kOutboxBytes;
}

}  // namespace spillway::emulated
