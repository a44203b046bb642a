#include "runtime/watchdog.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

namespace spillway {

namespace {

constexpr const char* kPrefix = "spillway-";
constexpr double kStaleSeconds = 3600;
constexpr double kSuspended = 2;  // a gap between two looks that only a suspension explains
constexpr int kNameWords = 10;    // 80 bytes of an instruction's name

std::atomic<int> wake_fd{-1};

void on_signal(int signal) {
  const int saved = errno;
  const unsigned char byte = static_cast<unsigned char>(signal);
  const int fd = wake_fd.load(std::memory_order_relaxed);
  if (fd >= 0 && write(fd, &byte, 1) < 0) {
    // The pipe is full of signals already.
  }
  errno = saved;
}

double now_seconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Process {
  char state = 0;          // as in /proc/PID/stat; 0: there is none
  int64_t start_time = 0;  // tells a process from a later one of the same number
};

Process look_at(int64_t pid) {
  char path[64], text[1024];
  std::snprintf(path, sizeof path, "/proc/%lld/stat", static_cast<long long>(pid));
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  const ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return {};
  text[n] = 0;
  const char* at = std::strrchr(text, ')');  // the name before it may hold anything
  if (!at || at[1] != ' ') return {};
  Process process;
  process.state = at[2];
  at += 2;
  for (int field = 3; field < 22 && at; ++field) {
    at = std::strchr(at, ' ');
    if (at) ++at;
  }
  if (at) process.start_time = std::atoll(at);
  return process;
}

// Segments lose their name as soon as all ranks have them open; one that still has it after an hour
// is left from a start that was cut short.
void remove_stale(const std::string& folder, const std::string& prefix) {
  DIR* dir = opendir(folder.c_str());
  if (!dir) return;
  while (const dirent* entry = readdir(dir)) {
    if (std::strncmp(entry->d_name, prefix.c_str(), prefix.size()) != 0) continue;
    const std::string path = folder + "/" + entry->d_name;
    struct stat s;
    if (stat(path.c_str(), &s) == 0 && difftime(time(nullptr), s.st_mtime) > kStaleSeconds)
      unlink(path.c_str());
  }
  closedir(dir);
}

const char* doing(Phase phase) {
  switch (phase) {
    case Phase::starting:
      return " while starting";
    case Phase::saving:
      return " while saving";
    case Phase::evaluating:
      return " while evaluating";
    default:
      return "";
  }
}

}  // namespace

struct Watchdog::Slot {
  std::atomic<int64_t> rank, pid, start_time, step;
  std::atomic<uint64_t> heartbeat;
  std::atomic<int32_t> phase, exit_code;
  std::atomic<uint64_t> instruction[kNameWords];  // text, zero padded
};

struct Watchdog::Shared {
  std::atomic<int32_t> reported;  // the first to find out prints, the others only end
  alignas(64) Slot slots[1];      // by rank on the node
};

Watchdog::Watchdog(Communicator& communicator, WatchdogOptions options)
    : communicator_(communicator),
      options_(std::move(options)),
      ranks_on_node_(communicator.ranks_on_node()),
      peers_(ranks_on_node_) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  host_ = host;
  open_shared(communicator);
  if (pipe2(wake_, O_NONBLOCK | O_CLOEXEC) != 0)
    internal_error("watchdog: no pipe: {}", std::strerror(errno));
  wake_fd.store(wake_[1]);
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGUSR1, &action, nullptr);
  thread_ = std::thread([this] { run(); });
}

Watchdog::~Watchdog() {
  const auto phase = static_cast<Phase>(own_->phase.load());
  if (phase != Phase::finished && phase != Phase::failed)
    leave(std::uncaught_exceptions() > 0 ? ExitCode::internal : ExitCode::done);
  const unsigned char end = 0;
  while (write(wake_[1], &end, 1) < 0 && (errno == EINTR || errno == EAGAIN)) {
  }
  thread_.join();
  signal(SIGTERM, SIG_DFL);
  signal(SIGUSR1, SIG_DFL);
  wake_fd.store(-1);
  close(wake_[0]);
  close(wake_[1]);
  munmap(shared_, shared_bytes_);
}

void Watchdog::open_shared(Communicator& communicator) {
  const std::string prefix = fmt::format("{}{}-", kPrefix, getuid());
  if (communicator.rank_on_node() == 0) remove_stale(options_.folder, prefix);
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  const std::string token =
      communicator.broadcast_text(fmt::format("{}-{:x}{:x}", getpid(), t.tv_sec, t.tv_nsec), 0);
  // The host's name is part of it: nodes in network namespaces of one machine share its folder.
  const std::string path = options_.folder + "/" + prefix + token + "-" + host_;
  shared_bytes_ = sizeof(Shared) + sizeof(Slot) * (ranks_on_node_ - 1);
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(shared_bytes_)) != 0)
    internal_error("watchdog: cannot create {}: {}", path, std::strerror(errno));
  void* memory = mmap(nullptr, shared_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const int error = errno;
  close(fd);
  if (memory == MAP_FAILED)
    internal_error("watchdog: cannot map {}: {}", path, std::strerror(error));
  shared_ = static_cast<Shared*>(memory);  // a fresh file is zero: every field's start
  own_ = &shared_->slots[communicator.rank_on_node()];
  own_->rank = communicator.rank();
  own_->start_time = look_at(getpid()).start_time;
  own_->pid = getpid();
  communicator.barrier();  // all have it open and have said who they are
  unlink(path.c_str());    // by all, the first succeeds: nothing is left behind however they end
}

void Watchdog::watch(const Device* device) {
  const std::lock_guard lock(device_mutex_);
  device_ = device;
}

void Watchdog::enter(Phase phase, int64_t step) {
  // In this order, as `publish` reads the phase first: a new phase is never seen without its
  // progress.
  fed_.fetch_add(1);
  own_->step = step;
  own_->phase = static_cast<int32_t>(phase);
}

void Watchdog::leave(ExitCode code) {
  own_->exit_code = static_cast<int32_t>(code);
  const bool well = code == ExitCode::done || code == ExitCode::resume_me;
  own_->phase = static_cast<int32_t>(well ? Phase::finished : Phase::failed);
}

void Watchdog::run() {
  double last = now_seconds();
  for (;;) {
    pollfd fd{wake_[0], POLLIN, 0};
    const double patience = term_waited_ >= 0 ? 0.01 : options_.tick;
    poll(&fd, 1, static_cast<int>(patience * 1000));
    unsigned char byte = 0;
    while (read(wake_[0], &byte, 1) == 1) {
      if (byte == 0) return;
      if (byte == SIGUSR1) stop_requested_.store(true, std::memory_order_release);
      if (byte == SIGTERM && term_waited_ < 0) term_waited_ = 0;
    }
    const double now = now_seconds();
    double elapsed = now - last;
    last = now;
    if (elapsed > kSuspended + options_.tick) {
      // This whole machine or job was suspended: what looks old is not.
      const std::lock_guard lock(look_mutex_);
      std::fill(peers_.begin(), peers_.end(), Peer());
      quiet_ = 0;
      elapsed = 0;
    }
    tick(elapsed);
  }
}

void Watchdog::tick(double elapsed) {
  publish();
  {
    const std::lock_guard lock(look_mutex_);
    look_at_peers(elapsed);
  }
  check_self(elapsed);
  if (term_waited_ >= 0 && !stop_requested()) {
    term_waited_ = term_waited_ + elapsed;
    if (term_waited_ >= options_.term_patience)
      stop_requested_.store(true, std::memory_order_release);
  }
}

void Watchdog::publish() {
  own_->heartbeat.fetch_add(1);
  phase_ = static_cast<Phase>(own_->phase.load());
  uint64_t progress = fed_.load();
  planned_ = 0;
  const Instr* shown = nullptr;
  {
    const std::lock_guard lock(device_mutex_);
    if (device_) {
      for (Lane lane : {Lane::compute, Lane::comm, Lane::h2d, Lane::d2h}) {
        progress += device_->completed(lane);
        const Instr* running = device_->running(lane);
        if (!running) continue;
        if (!shown) shown = running;
        planned_ = std::max(planned_, running->planned_us * 1e-6);
      }
    }
    // Between instructions the last one stays: a rank that dies there died after it.
    if (shown) {
      char text[kNameWords * 8] = "";
      shown->name.copy(text, sizeof text - 1);
      for (int i = 0; i < kNameWords; ++i) {
        uint64_t word;
        std::memcpy(&word, text + i * 8, 8);
        own_->instruction[i].store(word, std::memory_order_relaxed);
      }
    }
  }
  if (progress != last_progress_) quiet_ = 0;
  last_progress_ = progress;
}

double Watchdog::stuck_limit() const {
  switch (phase_) {
    case Phase::starting:
      return options_.starting_deadline;
    case Phase::step:
      return std::max(options_.stuck_after, options_.stuck_factor * planned_);
    case Phase::saving:
      return options_.saving_deadline;
    case Phase::evaluating:
      return std::max(options_.evaluating_deadline, options_.stuck_factor * planned_);
    case Phase::finished:
    case Phase::failed:
      break;
  }
  return 1e30;
}

void Watchdog::check_self(double elapsed) {
  quiet_ += elapsed;
  if (quiet_ <= stuck_limit()) return;
  std::string all;
  for (int i = 0; i < ranks_on_node_; ++i) {
    const Slot& slot = shared_->slots[i];
    all += fmt::format("{}{} stands{}", i ? "; " : "", who(slot), where(slot));
  }
  end(fmt::format("no progress for {:.0f} s: {}", quiet_, all));
}

void Watchdog::look_at_peers(double elapsed) {
  for (int i = 0; i < ranks_on_node_; ++i) {
    const Slot& slot = shared_->slots[i];
    Peer& peer = peers_[i];
    if (&slot == own_ || static_cast<Phase>(slot.phase.load()) == Phase::finished) continue;
    const Process process = look_at(slot.pid);
    const bool dead = process.state == 0 || process.state == 'Z' || process.state == 'X' ||
                      process.start_time != slot.start_time;
    auto lost = [&](const std::string& what) {
      end(fmt::format("peer lost: {} {}{}", who(slot), what, where(slot)));
    };
    if (dead) {
      const auto phase = static_cast<Phase>(slot.phase.load());
      if (phase == Phase::finished) continue;  // since the look above
      if (phase != Phase::failed) lost("died");
      peer.failed += elapsed;
      // A launcher's SIGTERM leaves less time.
      const double patience =
          term_waited_ >= 0 ? options_.term_patience / 2 : options_.failed_patience;
      if (peer.failed > patience)
        lost(fmt::format("ended with exit code {}", slot.exit_code.load()));
      continue;
    }
    const uint64_t heartbeat = slot.heartbeat;
    peer.silent = heartbeat == peer.heartbeat ? peer.silent + elapsed : 0;
    peer.heartbeat = heartbeat;
    peer.stopped = process.state == 'T' ? peer.stopped + elapsed : 0;
    if (peer.stopped > options_.stopped_after)
      lost(fmt::format("has been stopped for {:.0f} s", peer.stopped));
    if (peer.silent > options_.silent_after)
      lost(fmt::format("has been silent for {:.0f} s", peer.silent));
  }
}

void Watchdog::check_peers(double seconds) {
  const double until = now_seconds() + seconds;
  do {
    {
      const std::lock_guard lock(look_mutex_);
      look_at_peers(0);  // the time itself is counted by the watchdog's thread
    }
    usleep(10'000);
  } while (now_seconds() < until);
}

std::string Watchdog::who(const Slot& slot) const {
  return fmt::format("rank {} (host {}, pid {})", slot.rank.load(), host_, slot.pid.load());
}

// " at step 12 in instruction blk.3.qkv.forward"
std::string Watchdog::where(const Slot& slot) const {
  char text[kNameWords * 8 + 1] = "";
  for (int i = 0; i < kNameWords; ++i) {
    const uint64_t word = slot.instruction[i].load(std::memory_order_relaxed);
    std::memcpy(text + i * 8, &word, 8);
  }
  return fmt::format(" at step {}{}{}{}", slot.step.load(),
                     doing(static_cast<Phase>(slot.phase.load())),
                     text[0] ? " in instruction " : " before its first instruction", text);
}

void Watchdog::end(const std::string& line) {
  if (shared_->reported.exchange(1) == 0) {
    const std::string text = line + "\n";
    if (write(STDERR_FILENO, text.data(), text.size()) < 0) {
      // Nobody is left to tell.
    }
  }
  communicator_.abort();
  // At once: a launcher that has seen a death kills what is left within a second, and nothing that
  // a destructor could do is worth that race. Checkpoints are complete or not seen at any time.
  _exit(static_cast<int>(ExitCode::no_progress));
}

}  // namespace spillway
