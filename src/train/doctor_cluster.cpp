// Checks that ranks make together.
#include <fcntl.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>

#include "base/hash.h"
#include "train/doctor_checks.h"
#include "train/version.h"

namespace spillway {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double wall_clock() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Place {
  char host[64];
  int32_t rank_on_node;
  int32_t reserved;
  cpu_set_t cores;
};

Place own_place(const Communicator& communicator) {
  Place place{};
  gethostname(place.host, sizeof place.host - 1);
  place.rank_on_node = communicator.rank_on_node();
  sched_getaffinity(0, sizeof place.cores, &place.cores);
  return place;
}

std::vector<Place> places(Communicator& communicator) {
  const Place own = own_place(communicator);
  std::vector<Place> all(static_cast<size_t>(communicator.size()));
  communicator.gather(&own, sizeof own, all.data());
  return all;
}

}  // namespace

Check check_same_program(Communicator& communicator) {
  const std::string text = version_text();
  const auto hash = static_cast<int64_t>(hash_bytes(text.data(), text.size()) >> 1);
  Check f{"program", Health::ok, "the same version and instruction set on all ranks", "", {}};
  if (communicator.min(hash) == communicator.max(hash)) return f;
  const size_t isa = text.find("instruction set: ");
  f.health = Health::warning;
  f.found = "ranks differ in version or instruction set; here: " + text.substr(0, text.find('\n')) +
            ", " + text.substr(isa, text.find('\n', isa) - isa);
  f.mend = "one binary on machines of one kind: results agree within rounding only";
  return f;
}

// Ranks of a node that are bound to the same cores although there are others.
Check check_overlap(Communicator& communicator) {
  const std::vector<Place> all = places(communicator);
  const Place& own = all[static_cast<size_t>(communicator.rank())];
  Check f{
      "binding", Health::ok, "no set of cores is bound to more ranks than it has cores", "", {}};
  std::string shared;
  int together = 0;
  for (int r = 0; r < communicator.size(); ++r) {
    const Place& other = all[static_cast<size_t>(r)];
    if (std::strcmp(other.host, own.host) != 0) continue;
    if (!CPU_EQUAL(&other.cores, &own.cores)) continue;
    ++together;
    shared += (shared.empty() ? "" : ", ") + std::to_string(r);
  }
  if (together > CPU_COUNT(&own.cores)) {
    cpu_set_t node;
    std::memset(&node, 0xFF, sizeof node);
    const cpu_set_t kept = own.cores;
    if (sched_setaffinity(0, sizeof node, &node) == 0) {
      sched_getaffinity(0, sizeof node, &node);
      sched_setaffinity(0, sizeof kept, &kept);
    } else {
      node = kept;
    }
    if (CPU_COUNT(&node) <= CPU_COUNT(&own.cores)) return f;
    f.health = Health::error;
    f.found = fmt::format("ranks {} are all bound to the same {} of {} cores", shared,
                          CPU_COUNT(&own.cores), CPU_COUNT(&node));
    f.mend = "mpirun --bind-to none, or a binding that gives each rank its own cores";
  }
  return f;
}

std::vector<Check> check_output(const Needs& needs, Communicator& communicator) {
  if (needs.output.empty()) return {};
  const int rank = communicator.rank();
  const std::string token = communicator.broadcast_text(
      fmt::format("{}-{:x}", getpid(), static_cast<int64_t>(wall_clock() * 1e6)), 0);
  const auto path_of = [&](int r) {
    return fmt::format("{}/.doctor-{}-{}", needs.output, token, r);
  };
  Check f{"output folder", Health::ok, needs.output + " is one folder on all ranks", "", {}};
  const auto bad = [&](const std::string& found, const std::string& mend) {
    if (f.health != Health::ok) return;
    f.health = Health::error;
    f.found = found;
    f.mend = mend;
  };
  const auto write = [&] {
    std::ofstream file(path_of(rank));
    file << token << rank << '\n';
    file.close();
    if (!file)
      bad(fmt::format("{} cannot be written: {}", needs.output, std::strerror(errno)),
          "write permission and free space there, or another output");
  };
  // A network file system may show another node's file late.
  const auto seen = [&](int r) {
    constexpr double kPatience = 4;
    for (const double until = now() + kPatience;;) {
      std::ifstream file(path_of(r));
      std::string text;
      if (std::getline(file, text) && text == token + std::to_string(r)) return true;
      if (now() > until) return false;
      usleep(50'000);
    }
  };
  bool made = false;
  std::error_code error;
  if (rank == 0) {
    made = std::filesystem::create_directories(needs.output, error);
    if (error)
      bad(fmt::format("{} cannot be made: {}", needs.output, error.message()),
          "write permission there, or another output");
    write();
  }
  const std::string absolute =
      communicator.broadcast_text(std::filesystem::absolute(needs.output, error).string(), 0);
  // What rank 0 could not write nobody needs to look for.
  const bool written = communicator.max(rank == 0 && f.health != Health::ok ? 1 : 0) == 0;
  if (written && rank != 0) {
    if (!seen(0))
      bad(fmt::format("{} here is not the folder that rank 0 has as {}: its file is not there",
                      std::filesystem::absolute(needs.output, error).string(), absolute),
          "an absolute path on a file system that all nodes share");
    else
      write();
  }
  communicator.barrier();
  if (written && rank == 0)
    for (int r = 1; r < communicator.size(); ++r)
      if (!std::filesystem::exists(path_of(r), error) && !seen(r)) {
        bad(fmt::format("rank {} wrote no file that rank 0 can see in {}", r, absolute),
            "an absolute path on a file system that all nodes share, writable there");
        break;
      }
  communicator.barrier();
  std::vector<Check> all{f};
  // One rank of each node writes, all at once, as a save does.
  const bool writes = written && f.health == Health::ok && communicator.rank_on_node() == 0;
  if (writes) {
    constexpr int64_t kBytes = 64 * kMiB, kPiece = 4 * kMiB;
    constexpr double kSeconds = 2;
    const std::string path = path_of(rank) + "-speed";
    const std::vector<char> piece(static_cast<size_t>(kPiece), 'x');
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    const double begin = now();
    int64_t bytes = 0;
    while (fd >= 0 && bytes < kBytes && now() - begin < kSeconds) {
      const ssize_t n = ::write(fd, piece.data(), piece.size());
      if (n <= 0) break;
      bytes += n;
    }
    const bool good = fd >= 0 && bytes > 0 && fsync(fd) == 0;
    const double rate = static_cast<double>(bytes) / (now() - begin);
    if (fd >= 0) close(fd);
    std::filesystem::remove(path, error);
    Check speed{"write bandwidth",
                Health::ok,
                fmt::format("{}/s", format_bytes(static_cast<int64_t>(rate))),
                "",
                {}};
    if (!good) {
      speed.health = Health::error;
      speed.found = fmt::format("{} cannot be written: {}", path, std::strerror(errno));
      speed.mend = "free space there, or another output";
    } else {
      constexpr double kSlow = 20.0 * kMiB;
      const double save =
          static_cast<double>(needs.checkpoint_bytes) / (rate * communicator.node_count());
      if (needs.checkpoint_bytes > 0)
        speed.found += fmt::format(", a checkpoint takes about {:.1f} s", save);
      if (rate < kSlow) {
        speed.health = Health::warning;
        speed.mend = "a faster file system for output, or checkpoint.every larger";
      }
    }
    all.push_back(speed);
  }
  communicator.barrier();
  std::filesystem::remove(path_of(rank), error);
  communicator.barrier();
  if (made) std::filesystem::remove(needs.output, error);  // only if empty
  return all;
}

namespace {

// Messages between two ranks; the others do not call.
class Line {
 public:
  Line(Communicator& communicator, int peer) : communicator_(communicator), peer_(peer) {}
  void send(void* data, int64_t bytes) { exchange(data, bytes, true); }
  void receive(void* data, int64_t bytes) { exchange(data, bytes, false); }

 private:
  void exchange(void* data, int64_t bytes, bool send) {
    const ExchangeArgs::Part part{peer_, send, data, bytes};
    communicator_.exchange({{&part, 1}, 0});
  }
  Communicator& communicator_;
  int peer_;
};

struct Speed {
  double latency = 0, bandwidth = 0;  // seconds one way, bytes/s
};

Speed measure(Communicator& communicator, int peer, bool first, std::vector<char>& buffer) {
  constexpr int kPings = 20, kBlocks = 3;
  Line line(communicator, peer);
  char ping = 0;
  const auto round = [&](void* data, int64_t bytes) {
    if (first)
      line.send(data, bytes), line.receive(data, bytes);
    else
      line.receive(data, bytes), line.send(data, bytes);
  };
  round(&ping, 1);  // the connection is made here
  const double begin = now();
  for (int i = 0; i < kPings; ++i) round(&ping, 1);
  const double pinged = now();
  for (int i = 0; i < kBlocks; ++i) round(buffer.data(), static_cast<int64_t>(buffer.size()));
  const double bytes = 2.0 * kBlocks * static_cast<double>(buffer.size());
  return {(pinged - begin) / (2 * kPings), bytes / (now() - pinged)};
}

}  // namespace

std::vector<Check> check_network(Communicator& communicator) {
  if (communicator.size() == 1) return {};
  const std::vector<Place> all = places(communicator);
  std::vector<int> ends;  // one rank of every node; of one node alone, its first two ranks
  for (int r = 0; r < communicator.size(); ++r)
    if (all[static_cast<size_t>(r)].rank_on_node == 0) ends.push_back(r);
  const bool one_node = ends.size() == 1;
  if (one_node) ends.push_back(ends[0] == 0 ? 1 : 0);
  const int rank = communicator.rank(), count = static_cast<int>(ends.size());
  const auto at = std::find(ends.begin(), ends.end(), rank);
  const int own = at == ends.end() ? -1 : static_cast<int>(at - ends.begin());

  // Clocks against rank 0's.
  double skew = 0;
  for (const int peer : ends) {
    if (peer == ends[0] || (rank != ends[0] && rank != peer)) continue;
    constexpr int kTries = 5;
    double best = 1e30;
    Line line(communicator, rank == ends[0] ? peer : ends[0]);
    for (int i = 0; i < kTries; ++i) {
      double theirs = 0, verdict[2] = {0, 0};
      if (rank == ends[0]) {
        const double sent = wall_clock();
        line.send(&theirs, sizeof theirs);
        line.receive(&theirs, sizeof theirs);
        const double back = wall_clock();
        verdict[0] = theirs - (sent + back) / 2;
        verdict[1] = back - sent;
        line.send(verdict, sizeof verdict);
      } else {
        line.receive(&theirs, sizeof theirs);
        theirs = wall_clock();
        line.send(&theirs, sizeof theirs);
        line.receive(verdict, sizeof verdict);
        if (verdict[1] < best) best = verdict[1], skew = verdict[0];
      }
    }
  }

  // Every pair once: in each round the circle of ends turns by one, and those opposite each other
  // measure at the same time.
  std::vector<char> buffer(static_cast<size_t>(4 * kMiB));
  std::vector<std::pair<Speed, int>> measured;  // with the peer's place in ends
  const int even = count + count % 2;
  for (int turn = 0; own >= 0 && turn < even - 1; ++turn) {
    const auto seat = [&](int i) { return i == 0 ? 0 : 1 + (i - 1 + turn) % (even - 1); };
    for (int i = 0; i < even / 2; ++i) {
      const int a = seat(i), b = seat(even - 1 - i);
      if ((a != own && b != own) || a >= count || b >= count) continue;
      const int peer = a == own ? b : a;
      measured.emplace_back(
          measure(communicator, ends[static_cast<size_t>(peer)], own < peer, buffer), peer);
    }
  }
  communicator.barrier();
  double typical = 0;
  {
    double sum = 0;
    for (const auto& [speed, peer] : measured) sum += speed.bandwidth;
    const double own_mean = measured.empty() ? 0 : sum / static_cast<double>(measured.size());
    std::vector<double> means(static_cast<size_t>(communicator.size()));
    communicator.gather(&own_mean, sizeof own_mean, means.data());
    std::erase(means, 0.0);
    std::sort(means.begin(), means.end());
    if (!means.empty()) typical = means[means.size() / 2];
  }
  std::vector<Check> findings;
  if (own < 0) return findings;
  if (!one_node && rank != ends[0]) {
    constexpr double kMuch = 1;
    Check f{"clock", Health::ok, fmt::format("{:+.4f} s against rank 0's", skew), "", {}};
    if (std::fabs(skew) > kMuch) {
      f.health = Health::warning;
      f.mend = "NTP on every node: logs, file times and munge go by the clock";
    }
    findings.push_back(f);
  }
  for (const auto& [speed, peer] : measured) {
    if (peer < own) continue;
    const Place& other = all[static_cast<size_t>(ends[static_cast<size_t>(peer)])];
    Check f{one_node ? "MPI in the node" : "network",
            Health::ok,
            fmt::format("{} – {}: {}/s, {:.0f} µs", all[static_cast<size_t>(rank)].host, other.host,
                        format_bytes(static_cast<int64_t>(speed.bandwidth)), 1e6 * speed.latency),
            "",
            {}};
    if (speed.bandwidth < typical / 3) {
      f.health = Health::warning;
      f.found +=
          fmt::format(", where {}/s are typical", format_bytes(static_cast<int64_t>(typical)));
      f.mend = "look at the link, or name the right interface: OMPI_MCA_btl_tcp_if_include";
    }
    findings.push_back(f);
  }
  return findings;
}

}  // namespace spillway
