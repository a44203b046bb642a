// The MPI communicator: each test starts itself again as several ranks under mpirun.
// links: spillway_runtime_cpu
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>
#include <vector>

#include "base/error.h"
#include "runtime/cpu/cpu_device.h"
#include "runtime/cpu/mpi_communicator.h"
#include "runtime/watchdog.h"

namespace spillway {
namespace {

bool is_rank() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

// Exit status of this test under `ranks` ranks; their standard error goes to `said` if given.
int run_ranks(int ranks, std::string* said = nullptr, const std::string& environment = "") {
  const auto* info = testing::UnitTest::GetInstance()->current_test_info();
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command =
      environment +
      " OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -q --oversubscribe "
      "--bind-to none -np " +
      std::to_string(ranks) + " '" + self + "' --gtest_filter=" + info->test_suite_name() + "." +
      info->name() + (said ? " 2>&1 >/dev/null" : " >/dev/null");
  FILE* pipe = popen(command.c_str(), "r");
  char part[4096];
  while (size_t n = fread(part, 1, sizeof part, pipe))
    if (said) said->append(part, n);
  const int status = pclose(pipe);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

char byte_of(int from, int to, int part, int64_t i) {
  return static_cast<char>(from * 31 + to * 17 + part * 7 + i % 251);
}

// Every rank sends to every other, in an order of its own, parts of many sizes; the k-th send meets
// the k-th receive.
void exchange_everything(Communicator& comm, int sequence) {
  const int64_t sizes[] = {1, 0, 1000, (4 << 20) + 1, 13 << 20};
  std::vector<ExchangeArgs::Part> parts;
  std::vector<std::vector<char>> sent, received;
  std::vector<int> peers;
  for (int p = 0; p < comm.size(); ++p)
    if (p != comm.rank()) peers.push_back(p);
  std::shuffle(peers.begin(), peers.end(), std::mt19937(comm.rank() + sequence));
  for (int peer : peers)
    for (int k = 0; k < 5; ++k) {
      sent.emplace_back(sizes[k]);
      for (int64_t i = 0; i < sizes[k]; ++i) sent.back()[i] = byte_of(comm.rank(), peer, k, i);
      received.emplace_back(sizes[k], '\x5a');
    }
  for (size_t n = 0; n < sent.size(); ++n) {
    const int peer = peers[n / 5];
    const int64_t bytes = sizes[n % 5];
    parts.push_back({peer, true, sent[n].data(), bytes});
    parts.push_back({peer, false, received[n].data(), bytes});
  }
  comm.exchange({parts, sequence});
  for (size_t n = 0; n < received.size(); ++n)
    for (size_t i = 0; i < received[n].size(); ++i)
      ASSERT_EQ(received[n][i], byte_of(peers[n / 5], comm.rank(), static_cast<int>(n % 5),
                                        static_cast<int64_t>(i)))
          << "from " << peers[n / 5] << " part " << n % 5 << " byte " << i;
}

// The same bytes to every peer, and a part of one buffer from each, as runs of peers.
void gather_in_runs(Communicator& comm, int sequence) {
  const int64_t bytes = (5 << 20) + 3;
  const int size = comm.size(), rank = comm.rank();
  std::vector<char> all(size * bytes);
  const auto at = [&](int r) { return all.data() + r * bytes; };
  for (int64_t i = 0; i < bytes; ++i) at(rank)[i] = byte_of(rank, rank, 0, i);
  std::vector<ExchangeArgs::Part> parts;
  for (const auto& [begin, end] : {std::pair{0, rank}, {rank + 1, size}}) {
    if (begin == end) continue;
    parts.push_back({begin, true, at(rank), bytes, end - begin, 1, 0});
    parts.push_back({begin, false, at(begin), bytes, end - begin, 1, bytes});
  }
  comm.exchange({parts, sequence});
  for (int r = 0; r < size; ++r)
    for (int64_t i = 0; i < bytes; ++i)
      ASSERT_EQ(at(r)[i], byte_of(r, r, 0, i)) << "from " << r << " byte " << i;
}

TEST(Mpi, MovesBytesAndAgrees) {
  if (!is_rank()) {
    EXPECT_EQ(run_ranks(2), 0);
    EXPECT_EQ(run_ranks(3), 0);
    EXPECT_EQ(run_ranks(4), 0);
    return;
  }
  auto comm = make_communicator();
  const int n = comm->size(), r = comm->rank();
  EXPECT_EQ(n, std::atoi(std::getenv("OMPI_COMM_WORLD_SIZE")));
  EXPECT_EQ(comm->ranks_on_node(), n);
  EXPECT_EQ(comm->rank_on_node(), r);
  EXPECT_EQ(comm->node_count(), 1);
  // Lane traffic on another thread, while the main thread agrees on things.
  std::thread lane([&] {
    for (int sequence = 0; sequence < 3; ++sequence) exchange_everything(*comm, sequence);
    gather_in_runs(*comm, 3);
  });
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(comm->max(r * 10), (n - 1) * 10);
    EXPECT_EQ(comm->min(r - 5), -5);
    EXPECT_EQ(comm->broadcast_text("rank " + std::to_string(r), n - 1),
              "rank " + std::to_string(n - 1));
    EXPECT_EQ(comm->broadcast_text(r == 0 ? "" : "x", 0), "");
    std::string expected = "0";
    for (int p = 1; p < n; ++p) expected += "\n" + std::to_string(p);
    EXPECT_EQ(comm->gather_text(std::to_string(r)), r == 0 ? expected : "");
    std::vector<int64_t> all(n, -1);
    const int64_t mine = 100 + r;
    comm->gather(&mine, sizeof mine, all.data());
    for (int p = 0; p < n; ++p) EXPECT_EQ(all[p], 100 + p);
  }
  lane.join();
  const int64_t big = (4 << 20) + 3;
  std::vector<char> mine(big, static_cast<char>(r + 1)), all(big * n);
  comm->gather(mine.data(), big, all.data());
  for (int p = 0; p < n; ++p) EXPECT_EQ(all[(p + 1) * big - 1], p + 1);
  comm->barrier();
}

TEST(Mpi, AbortEndsAnExchangeThatNobodyAnswers) {
  if (!is_rank()) {
    EXPECT_EQ(run_ranks(2), 4);
    return;
  }
  auto comm = make_communicator();
  if (comm->rank() == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(60));  // ended by mpirun
    std::_Exit(1);
  }
  char byte = 0;
  const ExchangeArgs::Part part{1, false, &byte, 1};
  std::thread aborter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    comm->abort();
  });
  try {
    comm->exchange({{&part, 1}, 0});
  } catch (const Error& e) {
    aborter.join();
    comm.reset();
    std::_Exit(e.code() == ExitCode::no_progress ? 4 : 1);
  }
  std::_Exit(1);
}

// Exchanges for ever; the rank and exchange of the environment sends itself a signal.
[[noreturn]] void exchange_until_lost() {
  const int victim = std::atoi(std::getenv("VICTIM")), at = std::atoi(std::getenv("AT"));
  const int signal = std::atoi(std::getenv("SIGNAL"));
  auto comm = make_communicator();
  WatchdogOptions options;
  options.stopped_after = 1;
  Watchdog watchdog(*comm, options);
  CpuDevice device([](OpKind) -> Kernel { return nullptr; }, comm.get());
  char* memory = static_cast<char*>(device.reserve(Tier::device, 1 << 20));
  const int peer = 1 - comm->rank();
  const ExchangeArgs::Part parts[] = {{peer, true, memory, 1 << 19},
                                      {peer, false, memory + (1 << 19), 1 << 19}};
  Instr instr;
  instr.name = "exchange grads@2";
  watchdog.watch(&device);
  for (int step = 1;; ++step) {
    watchdog.enter(Phase::step, step);
    if (comm->rank() == victim && step == at) raise(signal);
    try {
      device.exchange(Lane::comm, {parts, step}, &instr);
      device.synchronise_all();
    } catch (const Error& e) {
      watchdog.check_peers(2);
      std::fprintf(stderr, "%s\n", e.what());
      std::_Exit(static_cast<int>(e.code()));
    }
  }
}

TEST(Mpi, ALostPeerIsNamedAndEndsTheRun) {
  if (is_rank()) exchange_until_lost();
  std::mt19937 random(std::random_device{}());
  for (int signal : {SIGKILL, SIGSTOP}) {
    for (int victim : {0, 1}) {
      const int at = 2 + static_cast<int>(random() % 300);
      std::string said;
      const int code = run_ranks(2, &said,
                                 "VICTIM=" + std::to_string(victim) + " AT=" + std::to_string(at) +
                                     " SIGNAL=" + std::to_string(signal));
      EXPECT_EQ(code, signal == SIGKILL ? 128 + SIGKILL : 4) << said;
      EXPECT_NE(said.find("peer lost: rank " + std::to_string(victim) + " (host "),
                std::string::npos)
          << "victim " << victim << " step " << at << ": " << said;
      EXPECT_NE(said.find(" at step " + std::to_string(at)), std::string::npos) << said;
    }
  }
}

TEST(Mpi, MpirunReturnsTheCodeOfAStopOnRequest) {
  if (!is_rank()) {
    EXPECT_EQ(run_ranks(2), 75);
    return;
  }
  {
    auto comm = make_communicator();
    Watchdog watchdog(*comm);
    if (comm->rank() == 1) raise(SIGUSR1);
    while (!comm->max(watchdog.stop_requested())) watchdog.progress();
    watchdog.leave(ExitCode::resume_me);
  }
  std::exit(75);
}

TEST(Mpi, ARunWithoutALauncherNeedsNoMpi) {
  if (is_rank()) return;
  auto comm = make_communicator();
  EXPECT_EQ(comm->size(), 1);
  EXPECT_EQ(comm->broadcast_text("x", 0), "x");
  comm->exchange({});
}

}  // namespace
}  // namespace spillway
