#include "runtime/watchdog.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <span>

#include "runtime/process.h"
#include "runtime/shared_segment.h"

namespace spillway {

namespace {

constexpr const char* kPrefix = "spillway-";
constexpr double kSuspended = 2;  // a gap between two looks that only a suspension explains
constexpr int kNameWords = 10;    // 80 bytes of an instruction's name
constexpr size_t kLineBytes = 1024;

// Kinds of datagrams: where the sender's ranks stand; the same, and it ends well; the line that a
// rank there ends with.
enum Kind : uint32_t { kBeat, kGoodbye, kLost };

struct Record {  // of one rank, in a datagram
  int32_t rank, phase, exit_code, reserved;
  int64_t pid, step;
  uint64_t heartbeat;
  uint64_t instruction[kNameWords];
};
constexpr size_t kRecords = HostMesh::kMaxPayload / sizeof(Record);

struct Introduction {  // what the ranks tell each other at start
  int32_t leader;
  char host[64];
  HostContact contact;
};

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

// The launcher at the other end of standard error may be gone: that is no reason to end by SIGPIPE.
void say(const std::string& line) {
  signal(SIGPIPE, SIG_IGN);
  const std::string text = line + "\n";
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) {
    // Nobody is left to tell.
  }
}

const char* doing(Phase phase) {
  switch (phase) {
    case Phase::starting:
      return " while starting";
    case Phase::saving:
      return " while saving";
    case Phase::evaluating:
      return " while evaluating";
    case Phase::checking:
      return " while checking";
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
  // Of a leader of another host: datagrams that came from there, and whether it said goodbye.
  std::atomic<uint64_t> beats;
  std::atomic<bool> gone;
};

struct Watchdog::Shared {
  std::atomic<int32_t> reported;  // the first to find out prints, the others only end
  std::atomic<int32_t> leader;    // lowest rank of this host, + 1
  std::atomic<int32_t> told;      // another host's line stands in `line`
  std::atomic<int32_t> seen_off;  // one rank of the host looks after the launcher
  char line[kLineBytes];
  alignas(64) Slot slots[1];  // by rank of the run
};

Watchdog::Watchdog(Communicator& communicator, WatchdogOptions options)
    : communicator_(communicator),
      options_(std::move(options)),
      rank_(communicator.rank()),
      ranks_(communicator.size()),
      peers_(ranks_),
      launcher_(getppid()),
      launcher_start_(look_at(launcher_).start_time) {
  open_shared(communicator);
  meet_hosts(communicator);
  if (pipe2(wake_, O_NONBLOCK | O_CLOEXEC) != 0)
    internal_error("watchdog: no pipe: {}", std::strerror(errno));
  wake_fd.store(wake_[1]);
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGUSR1, &action, nullptr);
  action.sa_flags |= static_cast<int>(SA_RESETHAND);  // a second Ctrl-C ends the process
  sigaction(SIGINT, &action, nullptr);
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
  // Datagrams may be lost: several, so that the others do not wait for what this rank knows.
  if (leads())
    for (int i = 0; i < 3; ++i)
      beat(static_cast<Phase>(own_->phase.load()) == Phase::finished ? kGoodbye : kBeat);
  signal(SIGTERM, SIG_DFL);
  signal(SIGUSR1, SIG_DFL);
  signal(SIGINT, SIG_DFL);
  wake_fd.store(-1);
  close(wake_[0]);
  close(wake_[1]);
  munmap(shared_, shared_bytes_);
  close(segment_);
}

Watchdog::Slot& Watchdog::slot(int rank) const { return shared_->slots[rank]; }

void Watchdog::open_shared(Communicator& communicator) {
  const std::string prefix = fmt::format("{}{}-", kPrefix, getuid());
  if (communicator.rank_on_node() == 0) remove_stale_segments(options_.folder, prefix);
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  const std::string token =
      communicator.broadcast_text(fmt::format("{}-{:x}{:x}", getpid(), t.tv_sec, t.tv_nsec), 0);
  // The host's name is part of it: nodes in network namespaces of one machine share its folder.
  char host[64] = "";
  gethostname(host, sizeof host - 1);
  const std::string path = options_.folder + "/" + prefix + token + "-" + host;
  shared_bytes_ = sizeof(Shared) + sizeof(Slot) * (ranks_ - 1);
  segment_ = open_segment(path);
  if (ftruncate(segment_, static_cast<off_t>(shared_bytes_)) != 0)
    internal_error("watchdog: cannot create {}: {}", path, std::strerror(errno));
  void* memory = mmap(nullptr, shared_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, segment_, 0);
  if (memory == MAP_FAILED)
    internal_error("watchdog: cannot map {}: {}", path, std::strerror(errno));
  shared_ = static_cast<Shared*>(memory);  // a fresh file is zero: every field's start
  own_ = &slot(rank_);
  own_->rank = rank_;
  own_->start_time = look_at(getpid()).start_time;
  own_->pid = getpid();
  for (int32_t old = shared_->leader; old == 0 || old > rank_ + 1;)
    if (shared_->leader.compare_exchange_weak(old, rank_ + 1)) break;
  communicator.barrier();  // all have it open and have said who they are
  unlink(path.c_str());    // by all, the first succeeds: nothing is left behind however they end
}

// A host is what shares a segment. Its lowest rank speaks for it.
void Watchdog::meet_hosts(Communicator& communicator) {
  Introduction own{};
  own.leader = shared_->leader - 1;
  gethostname(own.host, sizeof own.host - 1);
  own.contact = mesh_.contact();
  std::vector<Introduction> all(ranks_);
  communicator.gather(&own, sizeof own, all.data());
  host_of_.resize(ranks_);
  std::vector<HostContact> contacts;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (all[rank].leader == rank) {
      Host host;
      host.leader = rank;
      host.name = all[rank].host;
      hosts_.push_back(host);
      contacts.push_back(all[rank].contact);
    }
    for (size_t h = 0; h < hosts_.size(); ++h)
      if (hosts_[h].leader == all[rank].leader) host_of_[rank] = static_cast<int>(h);
    hosts_[host_of_[rank]].ranks.push_back(rank);
    slot(rank).rank = rank;
  }
  own_host_ = host_of_[rank_];
  options_.beat = std::max(options_.beat, 0.002 * static_cast<double>(hosts_.size()));
  // Whoever knows the key is of this run.
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  uint64_t key = static_cast<uint64_t>(getpid()) << 40 ^ static_cast<uint64_t>(t.tv_sec) << 30 ^
                 static_cast<uint64_t>(t.tv_nsec);
  communicator.broadcast(&key, sizeof key, 0);
  mesh_.meet(key, own_host_, std::move(contacts));
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
      if (byte == SIGINT && rank_ == 0) say("Ctrl-C: saving after this step; again: end at once");
      if (byte == SIGUSR1 || byte == SIGINT) stop_requested_.store(true, std::memory_order_release);
      if (byte == SIGTERM && term_waited_ < 0) term_waited_ = 0;
    }
    const double now = now_seconds();
    double elapsed = now - last;
    last = now;
    if (elapsed > kSuspended + options_.tick) {
      // This whole machine or job was suspended: what looks old is not.
      const std::lock_guard lock(look_mutex_);
      std::fill(peers_.begin(), peers_.end(), Peer());
      for (Host& host : hosts_) host.silent = 0;
      quiet_ = 0;
      elapsed = 0;
    }
    tick(elapsed);
  }
}

void Watchdog::tick(double elapsed) {
  publish();
  if (leads() && hosts_.size() > 1) {
    listen();
    since_beat_ += elapsed;
    if (since_beat_ >= options_.beat) {
      since_beat_ = 0;
      beat(kBeat);
    }
  }
  check_launcher();
  {
    const std::lock_guard lock(look_mutex_);
    look_at_peers(elapsed);
    look_at_hosts(elapsed);
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
  double planned = 0;
  const Instr* shown = nullptr;
  {
    const std::lock_guard lock(device_mutex_);
    if (device_) {
      if (trouble_.empty()) trouble_ = device_->poll();
      for (Lane lane : {Lane::compute, Lane::comm, Lane::h2d, Lane::d2h}) {
        progress += device_->completed(lane);
        const Instr* running = device_->running(lane);
        if (!running) continue;
        if (!shown) shown = running;
        planned = std::max(planned, running->planned_us * 1e-6);
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
  // An instruction that has ended may not count as completed yet: its patience lasts until it does.
  planned_ = progress == last_progress_ ? std::max(planned_, planned) : planned;
  if (progress != last_progress_) quiet_ = 0;
  last_progress_ = progress;
}

// Where the ranks of this host stand, to every other host.
void Watchdog::beat(uint32_t kind) {
  Record records[kRecords];
  size_t count = 0;
  const auto send = [&] {
    if (count == 0) return;
    for (int h = 0; h < static_cast<int>(hosts_.size()); ++h)
      if (h != own_host_)
        mesh_.send(h, kind, std::as_bytes(std::span<const Record>(records, count)));
    count = 0;
  };
  for (const int rank : hosts_[own_host_].ranks) {
    const Slot& s = slot(rank);
    Record& r = records[count++];
    r = {rank, s.phase, s.exit_code, 0, s.pid, s.step, s.heartbeat, {}};
    for (int i = 0; i < kNameWords; ++i) r.instruction[i] = s.instruction[i];
    if (count == kRecords) send();
  }
  send();
}

void Watchdog::listen() {
  HostMesh::Datagram d;
  while (mesh_.receive(d)) {
    if (d.kind == kLost) {
      if (shared_->told != 0) continue;
      const size_t bytes = std::min(d.bytes, kLineBytes - 1);
      std::memcpy(shared_->line, d.payload, bytes);
      shared_->line[bytes] = 0;
      shared_->told = 1;
      continue;
    }
    Slot& leader = slot(hosts_[d.from].leader);
    for (size_t at = 0; at + sizeof(Record) <= d.bytes; at += sizeof(Record)) {
      Record r;
      std::memcpy(&r, d.payload + at, sizeof r);
      if (r.rank < 0 || r.rank >= ranks_ || host_of_[r.rank] != d.from) continue;
      Slot& s = slot(r.rank);
      s.phase = r.phase;
      s.exit_code = r.exit_code;
      s.pid = r.pid;
      s.step = r.step;
      s.heartbeat = r.heartbeat;
      for (int i = 0; i < kNameWords; ++i) s.instruction[i] = r.instruction[i];
    }
    if (d.kind == kGoodbye) leader.gone = true;
    leader.beats.fetch_add(1);
  }
}

double Watchdog::limit_of(Phase phase) const {
  switch (phase) {
    case Phase::starting:
      return options_.starting_deadline;
    case Phase::step:
      return std::max(options_.stuck_after, options_.stuck_factor * planned_);
    case Phase::saving:
      return options_.saving_deadline;
    case Phase::evaluating:
    case Phase::checking:
      return std::max(options_.evaluating_deadline, options_.stuck_factor * planned_);
    case Phase::finished:
    case Phase::failed:
      break;
  }
  return 1e30;
}

void Watchdog::check_self(double elapsed) {
  // What blocked in the device has been told; normally it ends the run with the same message.
  if (!trouble_.empty()) troubled_ += elapsed;
  if (troubled_ > options_.device_patience)
    end(fmt::format("{}{}: {}", who(rank_), where(rank_), trouble_));
  quiet_ += elapsed;
  double limit = limit_of(phase_);
  if (quiet_ <= limit) return;
  // Whoever waits for a rank in a declared phase has that phase's patience.
  for (int rank = 0; rank < ranks_; ++rank) {
    const Host& host = hosts_[host_of_[rank]];
    const bool known = host_of_[rank] == own_host_ || slot(host.leader).beats > 0;
    const auto phase = static_cast<Phase>(slot(rank).phase.load());
    if (known && phase != Phase::finished && phase != Phase::failed)
      limit = std::max(limit, limit_of(phase));
  }
  if (quiet_ <= limit) return;
  std::vector<int> all(ranks_);
  for (int rank = 0; rank < ranks_; ++rank) all[rank] = rank;
  end(fmt::format("no progress for {:.0f} s: {}", quiet_, standings(all)));
}

// A rank whose launcher is gone would go on without anyone who could end it.
void Watchdog::check_launcher() {
  if (ranks_ == 1 || getppid() == launcher_) return;
  end(fmt::format("launcher lost: process {}, which started rank {} (host {}), died{}", launcher_,
                  rank_, hosts_[own_host_].name, where(rank_)));
}

void Watchdog::look_at_peers(double elapsed) {
  for (int rank = 0; rank < ranks_; ++rank) {
    const Slot& s = slot(rank);
    Peer& peer = peers_[rank];
    if (rank == rank_ || static_cast<Phase>(s.phase.load()) == Phase::finished) continue;
    auto lost = [&](const std::string& what) {
      end(fmt::format("peer lost: {} {}{}", who(rank), what, where(rank)));
    };
    auto failed = [&] {
      peer.failed += elapsed;
      // A launcher's SIGTERM leaves less time.
      const double patience =
          term_waited_ >= 0 ? options_.term_patience / 2 : options_.failed_patience;
      if (peer.failed > patience) lost(fmt::format("ended with exit code {}", s.exit_code.load()));
    };
    if (host_of_[rank] != own_host_) {
      if (static_cast<Phase>(s.phase.load()) == Phase::failed) failed();
      continue;  // its own host looks after it, and tells
    }
    const Process process = look_at(s.pid);
    const bool dead = process.state == 0 || process.state == 'Z' || process.state == 'X' ||
                      process.start_time != s.start_time;
    if (dead) {
      const auto phase = static_cast<Phase>(s.phase.load());
      if (phase == Phase::finished) continue;  // since the look above
      if (phase != Phase::failed) lost("died");
      failed();
      continue;
    }
    const uint64_t heartbeat = s.heartbeat;
    peer.silent = heartbeat == peer.heartbeat ? peer.silent + elapsed : 0;
    peer.heartbeat = heartbeat;
    peer.stopped = process.state == 'T' ? peer.stopped + elapsed : 0;
    if (peer.stopped > options_.stopped_after)
      lost(fmt::format("has been stopped for {:.0f} s", peer.stopped));
    if (peer.silent > options_.silent_after)
      lost(fmt::format("has been silent for {:.0f} s", peer.silent));
  }
}

void Watchdog::look_at_hosts(double elapsed) {
  if (shared_->told != 0) end_as_told();
  for (Host& host : hosts_) {
    const Slot& leader = slot(host.leader);
    if (host.leader == hosts_[own_host_].leader || leader.gone) continue;
    const uint64_t beats = leader.beats;
    host.silent = beats == host.beats ? host.silent + elapsed : 0;
    host.beats = beats;
    if (leads() && host.silent > 10 * options_.beat)
      mesh_.forget_way(static_cast<int>(&host - hosts_.data()));
    if (beats == 0) {
      // Datagrams do not pass between these hosts: no reason to end, since MPI's may.
      if (host.silent > options_.host_silent_after && leads() && !host.warned) {
        host.warned = true;
        std::fprintf(stderr,
                     "warning: host %s hears nothing of host %s by UDP (a firewall?): its loss "
                     "would only be found by the lack of progress\n",
                     hosts_[own_host_].name.c_str(), host.name.c_str());
      }
      continue;
    }
    // A launcher that has seen a death says SIGTERM, and kills soon after: whoever has not been
    // heard since is the cause. mpirun kills within a second in any case; another launcher's
    // SIGTERM is more likely to be a wish to stop, so there the silence must fill all the patience.
    double patience = options_.host_silent_after;
    if (term_waited_ >= 0 && !stop_requested()) {
      const double waited = term_waited_ + elapsed;
      if (is_open_mpi_launcher(launcher_))
        patience = std::max(3 * options_.beat, 0.5 * options_.term_patience);
      else if (waited >= options_.term_patience)
        patience = 0.9 * options_.term_patience;
    }
    if (host.silent <= patience) continue;
    if (host.ranks.size() == 1)
      end(fmt::format("peer lost: {} has been silent for {:.1f} s{}", who(host.leader), host.silent,
                      where(host.leader)));
    end(fmt::format("peer lost: host {} has been silent for {:.1f} s: {}", host.name, host.silent,
                    standings(host.ranks)));
  }
}

void Watchdog::check_peers(double seconds) {
  const double until = now_seconds() + seconds;
  do {
    {
      const std::lock_guard lock(look_mutex_);
      look_at_peers(0);  // the time itself is counted by the watchdog's thread
      look_at_hosts(0);
    }
    usleep(10'000);
  } while (now_seconds() < until);
}

std::string Watchdog::who(int rank) const {
  return fmt::format("rank {} (host {}, pid {})", rank, hosts_[host_of_[rank]].name,
                     slot(rank).pid.load());
}

// " at step 12 in instruction blk.3.qkv.forward"
std::string Watchdog::where(int rank) const {
  const Slot& s = slot(rank);
  char text[kNameWords * 8 + 1] = "";
  for (int i = 0; i < kNameWords; ++i) {
    const uint64_t word = s.instruction[i].load(std::memory_order_relaxed);
    std::memcpy(text + i * 8, &word, 8);
  }
  return fmt::format(" at step {}{}{}{}", s.step.load(), doing(static_cast<Phase>(s.phase.load())),
                     text[0] ? " in instruction " : " before its first instruction", text);
}

// Where ranks stand, those that are furthest behind first.
std::string Watchdog::standings(const std::vector<int>& ranks) const {
  constexpr size_t kShown = 16;
  std::vector<std::pair<int64_t, int>> order;
  for (const int rank : ranks) order.emplace_back(slot(rank).step.load(), rank);
  std::stable_sort(order.begin(), order.end());
  std::string text;
  for (size_t i = 0; i < std::min(kShown, order.size()); ++i)
    text +=
        fmt::format("{}{} stands{}", i ? "; " : "", who(order[i].second), where(order[i].second));
  if (order.size() > kShown) text += fmt::format("; and {} more", order.size() - kShown);
  return text;
}

void Watchdog::end(const std::string& line) {
  if (shared_->reported.exchange(1) == 0) {
    say(line);
    const std::string said = line.substr(0, std::min(kLineBytes - 1, HostMesh::kMaxPayload));
    for (int i = 0; i < 3; ++i)
      for (int h = 0; h < static_cast<int>(hosts_.size()); ++h)
        if (h != own_host_)
          mesh_.send(h, kLost, std::as_bytes(std::span(said.data(), said.size())));
  }
  leave_launcher();
  communicator_.abort();
  // At once: a launcher that has seen a death kills what is left within a second, and nothing that
  // a destructor could do is worth that race. Checkpoints are complete or not seen at any time.
  _exit(static_cast<int>(ExitCode::no_progress));
}

void Watchdog::leave_launcher() {
  if (hosts_.size() > 1 && shared_->seen_off.exchange(1) == 0)
    see_off_launcher(launcher_, launcher_start_, options_.launcher_patience);
}

// Another host has found the cause and printed it. Its way to the user may be what is lost, so the
// host of rank 0 prints it as well.
void Watchdog::end_as_told() {
  if (host_of_[0] == own_host_ && shared_->reported.exchange(1) == 0) {
    say(shared_->line);
  }
  leave_launcher();
  communicator_.abort();
  _exit(static_cast<int>(ExitCode::no_progress));
}

}  // namespace spillway
