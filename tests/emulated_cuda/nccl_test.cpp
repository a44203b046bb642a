// The emulated NCCL between processes: what arrives, what it reports, and that no loss of a peer
// lets a rank hang.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>
#include <nvtx3/nvToolsExt.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/emulated_cuda/forked_ranks.h"
#include "tests/emulated_cuda/report.h"

namespace spillway {
namespace {

constexpr int kSeconds = 60;  // for ranks that run on after one has ended

void need(bool holds, const char* what) {
  if (!holds) fail(ExitCode::internal, "not so: {}", what);
}
#define NEED(condition) need(condition, #condition)

// One rank's communicator, stream and two buffers of device memory.
struct Rank {
  static constexpr size_t kBytes = 1 << 16;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  char *out = nullptr, *in = nullptr;
  int rank;

  Rank(int r, Communicator& host) : rank(r) {
    ncclUniqueId id = {};
    if (rank == 0) NEED(ncclGetUniqueId(&id) == ncclSuccess);
    host.broadcast(&id, sizeof id, 0);
    NEED(ncclCommInitRank(&comm, host.size(), id, rank) == ncclSuccess);
    NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    NEED(cudaMalloc(reinterpret_cast<void**>(&out), kBytes) == cudaSuccess);
    NEED(cudaMalloc(reinterpret_cast<void**>(&in), kBytes) == cudaSuccess);
    NEED(cudaMemset(out, rank, kBytes) == cudaSuccess);
    NEED(cudaDeviceSynchronize() == cudaSuccess);
  }
  ncclResult_t send(int peer, size_t bytes, size_t at = 0) {
    return ncclSend(out + at, bytes, ncclUint8, peer, comm, stream);
  }
  ncclResult_t receive(int peer, size_t bytes, size_t at = 0) {
    return ncclRecv(in + at, bytes, ncclUint8, peer, comm, stream);
  }
  // Both ways with one peer, in one group.
  void exchange(int peer, size_t sent, size_t received) {
    NEED(ncclGroupStart() == ncclSuccess);
    NEED(send(peer, sent) == ncclSuccess);
    NEED(receive(peer, received) == ncclSuccess);
    NEED(ncclGroupEnd() == ncclSuccess);
  }
  void finish() {
    NEED(cudaStreamSynchronize(stream) == cudaSuccess);
    NEED(ncclCommDestroy(comm) == ncclSuccess);
  }
  // Until the communicator has an error; then aborts, so that the stream goes on.
  ncclResult_t lost() {
    ncclResult_t error = ncclSuccess;
    while (error == ncclSuccess) {
      NEED(ncclCommGetAsyncError(comm, &error) == ncclSuccess);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::fprintf(stderr, "rank %d lost: %s\n", rank, ncclGetLastError(comm));
    NEED(ncclCommAbort(comm) == ncclSuccess);
    NEED(cudaStreamSynchronize(stream) == cudaSuccess);
    return error;
  }
};

bool has(const ForkedOutcome& outcome, const std::string& part) {
  return outcome.said.find(part) != std::string::npos;
}

uint64_t drawn_seed() {
  static const uint64_t value = [] {
    const char* set = std::getenv("SPILLWAY_TEST_SEED");
    const uint64_t seed = set ? std::strtoull(set, nullptr, 10) : std::random_device{}();
    std::printf("seed %lu (SPILLWAY_TEST_SEED sets another)\n", static_cast<unsigned long>(seed));
    return seed;
  }();
  return value;
}

// All with all and with itself, sizes drawn alike on every rank, two messages of a pair in one
// group.
TEST(Nccl, EveryByteArrives) {
  for (const int ranks : {1, 2, 3}) {
    const uint64_t seed = drawn_seed() + static_cast<uint64_t>(ranks);
    const ForkedOutcome outcome = run_forked(ranks, seed, kSeconds, [&](int own, Communicator& h) {
      Rank rank(own, h);
      std::mt19937_64 rng(seed);
      for (int round = 0; round < 20; ++round) {
        std::vector<char> sent, expected;
        NEED(ncclGroupStart() == ncclSuccess);
        for (int message = 0; message < 2 * ranks * ranks; ++message) {
          const int from = message / 2 / ranks, to = message / 2 % ranks;
          const size_t bytes = 1 + rng() % 3000;
          if (from == own) NEED(rank.send(to, bytes, sent.size()) == ncclSuccess);
          if (to == own) NEED(rank.receive(from, bytes, expected.size()) == ncclSuccess);
          for (size_t i = 0; i < bytes; ++i) {
            const char byte = static_cast<char>(rng());
            if (from == own) sent.push_back(byte);
            if (to == own) expected.push_back(byte);
          }
        }
        NEED(cudaMemcpy(rank.out, sent.data(), sent.size(), cudaMemcpyHostToDevice) == cudaSuccess);
        NEED(ncclGroupEnd() == ncclSuccess);
        NEED(cudaStreamSynchronize(rank.stream) == cudaSuccess);
        std::vector<char> got(expected.size());
        NEED(cudaMemcpy(got.data(), rank.in, got.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
        NEED(got == expected);
      }
      rank.finish();
    });
    EXPECT_TRUE(outcome.clean()) << ranks << " ranks: " << outcome.said;
  }
}

TEST(Nccl, JoiningIsChecked) {
  const ForkedOutcome outcome = run_forked(2, 1, kSeconds, [](int own, Communicator& host) {
    ncclUniqueId id = {}, nothing = {};
    if (own == 0) NEED(ncclGetUniqueId(&id) == ncclSuccess);
    host.broadcast(&id, sizeof id, 0);
    ncclComm_t comm = nullptr;
    NEED(ncclCommInitRank(&comm, 2, nothing, own) == ncclInvalidArgument);
    NEED(ncclCommInitRank(&comm, 2, id, 2) == ncclInvalidArgument);
    NEED(ncclCommInitRank(&comm, 2, id, own) == ncclSuccess);
    host.barrier();
    ncclComm_t again = nullptr;
    NEED(ncclCommInitRank(&again, 2, id, 1 - own) == ncclInvalidArgument);
    NEED(ncclCommInitRank(&again, 3, id, 2) == ncclInvalidArgument);
    host.barrier();
    NEED(ncclCommDestroy(comm) == ncclSuccess);
  });
  EXPECT_TRUE(outcome.clean()) << outcome.said;
}

TEST(Nccl, SizesThatDiffer) {
  const ForkedOutcome outcome = run_forked(2, 1, kSeconds, [](int own, Communicator& host) {
    Rank rank(own, host);
    rank.exchange(1 - own, 100, 100);
    rank.exchange(1 - own, 100, own == 0 ? 100 : 60);
    rank.finish();
  });
  EXPECT_EQ(outcome.codes, (std::vector<int>{0, emulated::kReportExit})) << outcome.said;
  EXPECT_TRUE(has(outcome, "receives 60 bytes of type 1 from rank 0, which sends 100"))
      << outcome.said;
}

TEST(Nccl, InstructionsThatDiffer) {
  const ForkedOutcome outcome = run_forked(2, 1, kSeconds, [](int own, Communicator& host) {
    Rank rank(own, host);
    for (const char* name : {own == 0 ? "layer 0" : "layer 1", own == 0 ? "layer 1" : "layer 0"}) {
      nvtxRangePushA(name);
      rank.exchange(1 - own, 100, 100);
      nvtxRangePop();
    }
    rank.finish();
  });
  EXPECT_EQ(outcome.codes, (std::vector<int>{emulated::kReportExit, emulated::kReportExit}))
      << outcome.said;
  EXPECT_TRUE(has(outcome, "rank 1: 'layer 1' receives what rank 0 sends in 'layer 0'"))
      << outcome.said;
}

TEST(Nccl, PartsOfOneGroupThatOverlap) {
  const ForkedOutcome outcome = run_forked(2, 1, kSeconds, [](int own, Communicator& host) {
    Rank rank(own, host);
    NEED(ncclGroupStart() == ncclSuccess);
    NEED(ncclSend(rank.out, 100, ncclUint8, 1 - own, rank.comm, rank.stream) == ncclSuccess);
    NEED(ncclRecv(own == 0 ? rank.out + 99 : rank.in, 100, ncclUint8, 1 - own, rank.comm,
                  rank.stream) == ncclSuccess);
    NEED(ncclGroupEnd() == ncclSuccess);
    rank.finish();
  });
  EXPECT_EQ(outcome.codes, (std::vector<int>{emulated::kReportExit, 0})) << outcome.said;
  EXPECT_TRUE(has(outcome, "overlap")) << outcome.said;
}

TEST(Nccl, WhatArrivesMustBeWaitedFor) {
  for (const bool waits : {true, false}) {
    const ForkedOutcome outcome = run_forked(2, 1, kSeconds, [&](int own, Communicator& host) {
      Rank rank(own, host);
      cudaStream_t other = nullptr;
      cudaEvent_t event = nullptr;
      NEED(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) == cudaSuccess);
      NEED(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
      rank.exchange(1 - own, 100, 100);
      NEED(cudaEventRecord(event, rank.stream) == cudaSuccess);
      if (waits) NEED(cudaStreamWaitEvent(other, event, 0) == cudaSuccess);
      NEED(cudaMemsetAsync(rank.in + 99, 0, 2, other) == cudaSuccess);
      NEED(cudaDeviceSynchronize() == cudaSuccess);
      rank.finish();
    });
    EXPECT_EQ(outcome.clean(), waits) << outcome.said;
    EXPECT_EQ(has(outcome, "missing wait: 1 bytes at byte 99"), !waits) << outcome.said;
  }
}

// Dies without a word, while its peer waits for it.
TEST(Nccl, PeerDies) {
  const ForkedOutcome outcome = run_forked(3, 1, kSeconds, [](int own, Communicator& host) {
    Rank rank(own, host);
    if (own == 2) kill(getpid(), SIGKILL);
    rank.exchange(own == 0 ? 2 : 0, 100, 100);
    NEED(rank.lost() == ncclRemoteError);
  });
  EXPECT_EQ(outcome.codes, (std::vector<int>{0, 0, 128 + SIGKILL})) << outcome.said;
  EXPECT_TRUE(has(outcome, "rank 0 lost: rank 2 has died")) << outcome.said;
  EXPECT_TRUE(has(outcome, "rank 1 lost: rank 0 has aborted")) << outcome.said;
}

TEST(Nccl, PeerLeavesAnExchangeOut) {
  const ForkedOutcome outcome = run_forked(2, 1, kSeconds, [](int own, Communicator& host) {
    Rank rank(own, host);
    rank.exchange(1 - own, 100, 100);
    if (own == 1) return rank.finish();
    rank.exchange(1 - own, 100, 100);
    NEED(rank.lost() == ncclRemoteError);
  });
  EXPECT_EQ(outcome.codes, (std::vector<int>{emulated::kReportExit, 0})) << outcome.said;
  EXPECT_TRUE(has(outcome, "rank 1 has not sent its message of 100 bytes and destroyed"))
      << outcome.said;
}

TEST(Nccl, MessageThatNeverComes) {
  const ForkedOutcome outcome = run_forked(2, 1, 2, [](int own, Communicator& host) {
    setenv("SPILLWAY_EMULATED_PATIENCE", "0.5", 1);
    Rank rank(own, host);
    if (own == 1)
      for (;;) pause();
    rank.exchange(1 - own, 100, 100);
    NEED(cudaStreamSynchronize(rank.stream) == cudaSuccess);
  });
  EXPECT_EQ(outcome.codes, (std::vector<int>{emulated::kReportExit, 128 + SIGKILL}))
      << outcome.said;
  EXPECT_TRUE(has(outcome, "rank 1 has not sent its message")) << outcome.said;
}

TEST(Nccl, ErrorsOnRequest) {
  const ForkedOutcome late = run_forked(2, 1, kSeconds, [](int own, Communicator& host) {
    if (own == 0) setenv("SPILLWAY_EMULATED_FAIL", "ncclAsyncError:2", 1);
    Rank rank(own, host);
    rank.exchange(1 - own, 100, 100);
    NEED(cudaStreamSynchronize(rank.stream) == cudaSuccess);
    rank.exchange(1 - own, 100, 100);
    NEED(rank.lost() == (own == 0 ? ncclSystemError : ncclRemoteError));
  });
  EXPECT_EQ(late.codes, (std::vector<int>{0, 0})) << late.said;
  const ForkedOutcome at_once = run_forked(2, 1, kSeconds, [](int own, Communicator& host) {
    if (own == 0) setenv("SPILLWAY_EMULATED_FAIL", "ncclSend:1", 1);
    Rank rank(own, host);
    if (own == 0) {
      NEED(rank.send(1, 100) == ncclUnhandledCudaError);
      NEED(ncclCommAbort(rank.comm) == ncclSuccess);
    } else {
      NEED(rank.receive(0, 100) == ncclSuccess);
      NEED(rank.lost() == ncclRemoteError);
    }
  });
  EXPECT_EQ(at_once.codes, (std::vector<int>{0, 0})) << at_once.said;
}

}  // namespace
}  // namespace spillway
