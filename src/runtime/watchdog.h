// No silent lack of progress: each rank publishes where it stands in memory that the ranks of its
// host share, and the hosts tell each other by datagrams (host_mesh.h). Every rank watches itself,
// its launcher and its peers, and ends the process with exit code 4 and one line on standard error
// when one is dead, stopped, stuck or out of reach. Signals that ask a run to stop are taken here
// too, since whether SIGTERM means "stop" depends on whether a peer has died.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "runtime/device.h"
#include "runtime/host_mesh.h"

namespace spillway {

// `checking` compares ranks and re-runs work: it has the deadline of an evaluation.
enum class Phase : int32_t { starting, step, saving, evaluating, finished, failed, checking };

struct WatchdogOptions {          // seconds
  double tick = 0.1;              // between two looks
  double stopped_after = 5;       // a peer in state "stopped" this long is lost
  double silent_after = 15;       // a living peer whose watchdog says nothing this long is lost
  double beat = 0.1;              // between two datagrams to every other host; more with many hosts
  double host_silent_after = 10;  // a host of which nothing is heard this long is lost
  double stuck_after = 15;        // no instruction finished in phase `step` …
  double stuck_factor = 20;       // … or this many times the planned time of what is running
  double starting_deadline = 600, saving_deadline = 1800, evaluating_deadline = 120;
  double term_patience =
      0.5;  // SIGTERM is taken for a wish to stop if no peer is found dead by then
  double failed_patience = 2;  // a peer that failed with a message of its own gets this long
  double device_patience = 5;  // … and this rank, once its device reports an asynchronous error
  double launcher_patience = 10;  // of several hosts: Open MPI's mpirun or orted is killed after
  std::string folder = "/dev/shm";
};

// One a process. Constructing is collective over the ranks.
class Watchdog {
 public:
  explicit Watchdog(Communicator& communicator, WatchdogOptions options = {});
  ~Watchdog();  // as leave(done), or leave(internal) while an exception is on its way
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // The device whose lanes tell about progress; nullptr before it is destroyed.
  void watch(const Device* device);

  // Main thread: a new phase or step; counts as progress. `step` is the one being worked on.
  void enter(Phase phase, int64_t step);
  // A long phase goes on (a file written, a batch evaluated).
  void progress() { fed_.fetch_add(1, std::memory_order_relaxed); }

  // SIGUSR1 or SIGINT came, or a SIGTERM that no peer's death explains: write a checkpoint and end
  // with ExitCode::resume_me at the next step boundary that all ranks agree on. Never blocks.
  bool stop_requested() const { return stop_requested_.load(std::memory_order_acquire); }

  // Looks at the peers for up to `seconds`; does not return if one is lost. To be called before an
  // error of communication is reported, which is rarely the cause.
  void check_peers(double seconds);

  // This rank ends now, on purpose; with a code other than done and resume_me peers will take it as
  // lost, after a moment for messages of their own.
  void leave(ExitCode code);

 private:
  struct Slot;
  struct Shared;
  struct Peer {  // what this rank has seen of another
    uint64_t heartbeat = 0;
    double silent = 0, stopped = 0, failed = 0;
  };
  struct Host {
    std::string name;
    int leader = 0;          // the rank that speaks for it
    std::vector<int> ranks;  // ascending
    uint64_t beats = 0;      // as seen last
    double silent = 0;
    bool warned = false;
  };

  void open_shared(Communicator& communicator);
  void meet_hosts(Communicator& communicator);
  void run();
  void tick(double elapsed);
  void publish();
  void listen();
  void beat(uint32_t kind);
  void check_self(double elapsed);
  void check_launcher();
  void look_at_peers(double elapsed);
  void look_at_hosts(double elapsed);
  double limit_of(Phase phase) const;
  bool leads() const { return hosts_[own_host_].leader == rank_; }
  Slot& slot(int rank) const;
  std::string who(int rank) const;
  std::string where(int rank) const;
  std::string standings(const std::vector<int>& ranks) const;
  [[noreturn]] void end(const std::string& line);
  [[noreturn]] void end_as_told();
  void leave_launcher();

  Communicator& communicator_;
  WatchdogOptions options_;
  const int rank_, ranks_;
  Shared* shared_ = nullptr;
  size_t shared_bytes_ = 0;
  int segment_ = -1;  // its file; the lock on it says that its run lives
  Slot* own_ = nullptr;
  HostMesh mesh_;
  std::vector<Host> hosts_;   // ascending leaders
  std::vector<int> host_of_;  // by rank
  int own_host_ = 0;
  std::vector<Peer> peers_;  // by rank
  double since_beat_ = 0;
  int64_t launcher_ = 0, launcher_start_ = 0;  // parent process
  Phase phase_ = Phase::starting;              // as `publish` saw it
  double quiet_ = 0;                           // since this rank's progress last changed
  uint64_t last_progress_ = 0;
  double planned_ = 0;                   // of what has run since progress changed, seconds
  std::string trouble_;                  // what the device reports of itself, or ""
  double troubled_ = 0;                  // since then, seconds
  std::atomic<double> term_waited_{-1};  // since SIGTERM; negative: none came
  std::atomic<uint64_t> fed_{0};
  std::atomic<bool> stop_requested_{false};
  std::mutex look_mutex_;  // looks are made by the watchdog's thread and by check_peers
  std::mutex device_mutex_;
  const Device* device_ = nullptr;
  int wake_[2] = {-1, -1};  // pipe: signal numbers from the handler, 0 to end
  std::thread thread_;
};

}  // namespace spillway
