#include "runtime/cpu/mpi_communicator.h"

// Without MPI's C++ bindings, which would need a library of their own.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1

#include <malloc.h>
#include <mpi.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdlib>

#include "base/error.h"
#include "runtime/launch.h"
#include "runtime/local_communicator.h"
#include "runtime/progress_word.h"
#include "runtime/shared_segment.h"

namespace spillway {

namespace {

// Messages travel in pieces: MPI counts are ints, and a large message makes MPI allocate a
// temporary as large. Two pieces of a part are in flight, so that the next is there when one ends.
constexpr int64_t kPiece = int64_t{4} << 20;
constexpr int kInFlight = 2;
constexpr size_t kUsualMessages = 4096;  // of one exchange; tables grow at the first larger one

using Clock = std::chrono::steady_clock;

// Between two looks at MPI that brought nothing.
class Patience {
 public:
  void pause() {
    const auto waited = Clock::now() - since_;
    if (waited < std::chrono::microseconds(50)) {
      cpu_relax();
      return;
    }
    const long ns = waited < std::chrono::milliseconds(5) ? 20'000 : 100'000;
    const timespec nap{0, ns};
    nanosleep(&nap, nullptr);
  }
  void progress() { since_ = Clock::now(); }

 private:
  Clock::time_point since_ = Clock::now();
};

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail(ExitCode::no_progress, "{} failed: {}", what, std::string(text, length));
}

[[noreturn]] void throw_aborted() {
  fail(ExitCode::no_progress, "communication was given up, since this run is ending");
}

}  // namespace

struct MpiCommunicator::Mpi {
  struct Stream {  // one part of an exchange: its pieces in order
    char* data;
    int64_t left;
    int peer, tag;
    bool send;
  };
  MPI_Comm lane = MPI_COMM_NULL, host = MPI_COMM_NULL;
  std::vector<Stream> streams;
  std::vector<MPI_Request> requests;  // kInFlight a stream
  std::vector<int> done, met;         // scratch: indices; parts met so far by peer and direction
  std::vector<MPI_Status> statuses;

  void hold(size_t messages) {
    if (requests.size() >= kInFlight * messages) return;
    streams.reserve(messages);
    requests.resize(kInFlight * messages, MPI_REQUEST_NULL);
    done.resize(kInFlight * messages);
    statuses.resize(kInFlight * messages);
  }
  void wait(MPI_Request& request, const std::atomic<bool>& aborted, const char* what) {
    Patience patience;
    for (int finished = 0;;) {
      check(MPI_Test(&request, &finished, MPI_STATUS_IGNORE), what);
      if (finished) return;
      if (aborted.load(std::memory_order_relaxed)) throw_aborted();
      patience.pause();
    }
  }
  void post_next(int index) {
    Stream& stream = streams[index / kInFlight];
    if (stream.left == 0) return;
    const int bytes = static_cast<int>(std::min(stream.left, kPiece));
    if (stream.send)
      check(
          MPI_Isend(stream.data, bytes, MPI_BYTE, stream.peer, stream.tag, lane, &requests[index]),
          "MPI_Isend");
    else
      check(
          MPI_Irecv(stream.data, bytes, MPI_BYTE, stream.peer, stream.tag, lane, &requests[index]),
          "MPI_Irecv");
    stream.data += bytes;
    stream.left -= bytes;
  }
};

MpiCommunicator::MpiCommunicator() : mpi_(std::make_unique<Mpi>()) {
  // MPI's temporaries come from malloc; given back to the system at each free, they would cost page
  // faults at each call.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  mallopt(M_TOP_PAD, 64 << 20);
  // Left by ranks whose mpirun was killed with them.
  char host[64] = "";
  gethostname(host, sizeof host - 1);
  remove_unused_segments("/dev/shm", fmt::format("vader_segment.{}.{}.", host, geteuid()));
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_MULTIPLE)
    bad_input("this MPI library does not provide MPI_THREAD_MULTIPLE, which is needed");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  check(MPI_Comm_dup(MPI_COMM_WORLD, &mpi_->lane), "MPI_Comm_dup");
  check(MPI_Comm_dup(MPI_COMM_WORLD, &mpi_->host), "MPI_Comm_dup");
  MPI_Comm node = MPI_COMM_NULL;
  check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node),
        "MPI_Comm_split_type");
  MPI_Comm_size(node, &ranks_on_node_);
  MPI_Comm_rank(node, &rank_on_node_);
  MPI_Comm_free(&node);
  const int leads = rank_on_node_ == 0;
  check(MPI_Allreduce(&leads, &node_count_, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD), "MPI_Allreduce");
  mpi_->hold(kUsualMessages);
  mpi_->met.resize(2 * size_);
}

MpiCommunicator::~MpiCommunicator() {
  if (aborted_.load()) return;  // MPI_Finalize would wait for peers that may be gone
  MPI_Comm_free(&mpi_->lane);
  MPI_Comm_free(&mpi_->host);
  MPI_Finalize();
}

void MpiCommunicator::exchange(const ExchangeArgs& args) {
  Mpi& mpi = *mpi_;
  mpi.streams.clear();
  std::fill(mpi.met.begin(), mpi.met.end(), 0);
  // The sequence in the tag makes ranks that disagree on the order stand still (and be named by the
  // watchdog) instead of receiving each other's wrong bytes.
  const int base = (args.sequence & 0x3FFFF) * ExchangeArgs::kMax;
  for (const ExchangeArgs::Part& part : args.parts)
    part.each([&](int peer, char* data) {
      if (peer < 0 || peer >= size_) internal_error("an exchange with rank {} of {}", peer, size_);
      int& met = mpi.met[2 * peer + part.send];
      if (met == ExchangeArgs::kMax) internal_error("more than {} messages to one rank", met);
      mpi.streams.push_back({data, part.bytes, peer, base + met++, part.send});
    });
  mpi.hold(mpi.streams.size());
  const int count = kInFlight * static_cast<int>(mpi.streams.size());
  std::fill_n(mpi.requests.begin(), count, MPI_REQUEST_NULL);
  // Receives first: a message that finds its receive posted needs no buffer.
  for (bool send : {false, true})
    for (int i = 0; i < count; ++i)
      if (mpi.streams[i / kInFlight].send == send) mpi.post_next(i);
  Patience patience;
  for (;;) {
    int finished = 0;
    check(MPI_Testsome(count, mpi.requests.data(), &finished, mpi.done.data(), mpi.statuses.data()),
          "an exchange");
    if (finished == MPI_UNDEFINED) return;  // nothing is left in flight
    if (aborted_.load(std::memory_order_relaxed)) throw_aborted();
    if (finished == 0) {
      patience.pause();
      continue;
    }
    patience.progress();
    for (int i = 0; i < finished; ++i) mpi.post_next(mpi.done[i]);
  }
}

void MpiCommunicator::barrier() {
  MPI_Request request;
  check(MPI_Ibarrier(mpi_->host, &request), "MPI_Ibarrier");
  mpi_->wait(request, aborted_, "a barrier");
}

void MpiCommunicator::broadcast(void* data, int64_t bytes, int root) {
  char* at = static_cast<char*>(data);
  for (int64_t left = bytes; left > 0;) {
    const int n = static_cast<int>(std::min(left, kPiece));
    MPI_Request request;
    check(MPI_Ibcast(at, n, MPI_BYTE, root, mpi_->host, &request), "MPI_Ibcast");
    mpi_->wait(request, aborted_, "a broadcast");
    at += n;
    left -= n;
  }
}

std::string MpiCommunicator::broadcast_text(const std::string& text, int root) {
  int64_t bytes = static_cast<int64_t>(text.size());
  broadcast(&bytes, sizeof bytes, root);
  std::string result = rank_ == root ? text : std::string(static_cast<size_t>(bytes), '\0');
  broadcast(result.data(), bytes, root);
  return result;
}

int64_t MpiCommunicator::max(int64_t value) {
  int64_t result = 0;
  MPI_Request request;
  check(MPI_Iallreduce(&value, &result, 1, MPI_INT64_T, MPI_MAX, mpi_->host, &request),
        "MPI_Iallreduce");
  mpi_->wait(request, aborted_, "an agreement");
  return result;
}

int64_t MpiCommunicator::min(int64_t value) { return -max(-value); }

std::string MpiCommunicator::gather_text(const std::string& text) {
  // Every rank takes part in every broadcast: few and short lines, and no messages beside the
  // collectives.
  std::string joined;
  for (int r = 0; r < size_; ++r) {
    const std::string line = broadcast_text(text, r);
    if (rank_ != 0) continue;
    if (r > 0) joined += '\n';
    joined += line;
  }
  return joined;
}

void MpiCommunicator::gather(const void* data, int64_t bytes, void* out) {
  if (bytes <= kPiece) {
    MPI_Request request;
    check(MPI_Iallgather(data, static_cast<int>(bytes), MPI_BYTE, out, static_cast<int>(bytes),
                         MPI_BYTE, mpi_->host, &request),
          "MPI_Iallgather");
    mpi_->wait(request, aborted_, "a gather");
    return;
  }
  for (int r = 0; r < size_; ++r) {
    char* slot = static_cast<char*>(out) + r * bytes;
    if (r == rank_) std::copy_n(static_cast<const char*>(data), bytes, slot);
    broadcast(slot, bytes, r);
  }
}

std::unique_ptr<Communicator> make_communicator() {
  const Launcher launcher = detect_launcher();
  if (!launcher.problem.empty()) bad_input("{}: {}", launcher.problem, launcher.mend);
  if (launcher.mpi) return std::make_unique<MpiCommunicator>();
  return std::make_unique<LocalCommunicator>();
}

std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string all(text, static_cast<size_t>(length));
  return all.substr(0, all.find(','));
}

}  // namespace spillway
