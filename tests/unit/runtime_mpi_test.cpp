// The MPI communicator: each test starts itself again as several ranks under mpirun.
// links: spillway_runtime_cpu
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>
#include <vector>

#include "base/error.h"
#include "runtime/cpu/mpi_communicator.h"

namespace spillway {
namespace {

bool is_rank() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

// Exit status of this test under `ranks` ranks.
int run_ranks(int ranks) {
  const auto* info = testing::UnitTest::GetInstance()->current_test_info();
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command =
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -q --oversubscribe "
      "--bind-to none -np " +
      std::to_string(ranks) + " '" + self + "' --gtest_filter=" + info->test_suite_name() + "." +
      info->name() + " >/dev/null";
  const int status = std::system(command.c_str());
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

TEST(Mpi, MovesBytesAndAgrees) {
  if (!is_rank()) {
    EXPECT_EQ(run_ranks(2), 0);
    EXPECT_EQ(run_ranks(3), 0);
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

TEST(Mpi, ARunWithoutALauncherNeedsNoMpi) {
  if (is_rank()) return;
  auto comm = make_communicator();
  EXPECT_EQ(comm->size(), 1);
  EXPECT_EQ(comm->broadcast_text("x", 0), "x");
  comm->exchange({});
}

}  // namespace
}  // namespace spillway
