// The CUDA device itself, on the emulated runtime: order, merged and split copies, reused events,
// progress words, times, limits of memory and what errors say.
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <random>

#include "tests/emulated_cuda/cuda_state.h"
#include "tests/emulated_cuda/faults.h"
#include "tests/emulated_cuda/forked_ranks.h"
#include "tests/emulated_cuda/program_run.h"
#include "tests/emulated_cuda/report.h"

namespace spillway {
namespace {

constexpr int64_t kBytes = 8 << 20;

// A device with both arenas and programs of nothing.
struct Rig {
  LocalCommunicator alone;
  cuda::CudaDevice device;
  char *memory, *host;

  explicit Rig(cuda::CudaDeviceOptions options = {}, int64_t bytes = kBytes)
      : device(cuda::kernel, alone, 0, std::move(options)) {
    device.connect({});
    device.warm_up({}, {});
    memory = static_cast<char*>(device.reserve(Tier::device, bytes));
    host = static_cast<char*>(device.reserve(Tier::host, bytes));
  }
};

Instr named(const char* name) {
  Instr i;
  i.name = name;
  return i;
}

std::string reports() {
  std::string text;
  for (const emulated::Report& r : emulated::take_reports()) text += r.kind + ": " + r.text + "\n";
  return text;
}

// ---- limits and errors, in processes whose environment asks for them
// ------------------------------

std::string said_by(const std::map<std::string, std::string>& environment, int code,
                    const std::function<void()>& body) {
  const ForkedOutcome outcome = run_forked(1, 1, 5, [&](int, Communicator&) {
    for (const auto& [key, value] : environment) setenv(key.c_str(), value.c_str(), 1);
    body();
  });
  EXPECT_EQ(outcome.codes[0], code) << outcome.said;
  return outcome.said;
}

TEST(CudaDeviceLimits, MemoryThatIsNotThereIsNamed) {
  std::string said = said_by({{"SPILLWAY_EMULATED_DEVICE_BYTES", "20971520"},
                              {"SPILLWAY_EMULATED_FOREIGN_BYTES", "16777216"}},
                             3, [] { Rig rig; });
  for (const char* word : {"device tier", "8.00 MiB", "4.00 MiB", "16.00 MiB", "memory.device"})
    EXPECT_NE(said.find(word), std::string::npos) << word << ": " << said;
  said = said_by({{"SPILLWAY_EMULATED_PINNED_BYTES", "5242880"}}, 3, [] {
    cuda::CudaDeviceOptions options;
    options.pinned.chunk_bytes = 2 << 20;
    Rig rig(options);
  });
  for (const char* word : {"host tier", "cudaHostRegister", "out of memory", "ulimit -l", "cgroup",
                           "memory.host", "8.00 MiB"})
    EXPECT_NE(said.find(word), std::string::npos) << word << ": " << said;
}

TEST(CudaDeviceLimits, ErrorsNameCallInstructionAndStepAndStay) {
  const std::string said = said_by({{"SPILLWAY_EMULATED_FAIL", "cudaMemcpyAsync:12"}}, 1, [] {
    Rig rig;
    rig.device.enter_step(7);
    const Instr instr = named("h2d blk.0.up.weight");
    const auto issue = [&] {
      for (int i = 0; i < 40; ++i) {
        rig.device.copy(Lane::h2d, rig.memory, rig.host, 512, &instr);
        rig.device.signal(Lane::h2d);
      }
    };
    std::string first, second;
    try {
      issue();
    } catch (const Error& e) {
      first = e.what();
    }
    try {
      rig.device.synchronise_all();
    } catch (const Error& e) {
      second = e.what();
    }
    if (first != second) internal_error("\"{}\" and \"{}\"", first, second);
    throw Error(ExitCode::internal, first);
  });
  EXPECT_NE(said.find("step 7, instruction h2d blk.0.up.weight: cudaMemcpyAsync failed: "),
            std::string::npos)
      << said;
}

TEST(CudaDeviceLimits, PinningTellsHowFarItIs) {
  const std::string said = said_by({}, 0, [] {
    cuda::CudaDeviceOptions options;
    options.pinned.chunk_bytes = 2 << 20;
    options.pinned.quiet_seconds = 0;
    options.say = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
    Rig rig(options);
  });
  EXPECT_NE(said.find("pinning host memory: 2.00 MiB of 8.00 MiB"), std::string::npos) << said;
}

TEST(CudaDevice, ArenasAreAligned) {
  Rig rig;
  EXPECT_EQ(reinterpret_cast<uintptr_t>(rig.memory) % 256, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(rig.host) % 256, 0u);
  EXPECT_THROW(rig.device.reserve(Tier::device, 256), Error);
}

// Copies of random ranges in random order, through chunks of pinned memory whose borders they
// cross, against a model of both memories.
TEST(CudaDevice, CopiesArriveWhole) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  cuda::CudaDeviceOptions options;
  options.pinned.chunk_bytes = 2 << 20;
  options.events = 3;
  options.merge_below = 4096;
  Rig rig(options);
  std::vector<char> host(kBytes), memory(kBytes);
  for (char& c : host) c = static_cast<char>(random());
  std::copy(host.begin(), host.end(), rig.host);
  rig.device.upload(rig.memory, memory.data(), kBytes);
  const Instr instr = named("a copy");
  int64_t at = 0, moved[2] = {0, 0};
  for (int i = 0; i < 400; ++i) {
    // Half of them continue the one before.
    const int64_t bytes = 1 + static_cast<int64_t>(random() % (random() % 8 == 0 ? 3000000 : 3000));
    if (random() % 2 == 0 || at + bytes > kBytes)
      at = static_cast<int64_t>(random() % static_cast<uint64_t>(kBytes - bytes));
    const bool back = random() % 64 == 0;
    const Lane lane = back ? Lane::d2h : Lane::h2d, other = back ? Lane::h2d : Lane::d2h;
    static Ticket last[kLaneCount];
    if (i == 0) std::fill(std::begin(last), std::end(last), 0);
    if (back || random() % 64 == 0)  // what the other lane did to these bytes
      rig.device.wait(lane, other, last[static_cast<int>(other)]);
    else if (last[static_cast<int>(Lane::d2h)] > 0)
      rig.device.wait(Lane::h2d, Lane::d2h, last[static_cast<int>(Lane::d2h)]);
    if (back)
      std::copy_n(memory.begin() + at, bytes, host.begin() + at);
    else
      std::copy_n(host.begin() + at, bytes, memory.begin() + at);
    last[static_cast<int>(lane)] =
        back ? rig.device.copy(lane, rig.host + at, rig.memory + at, bytes, &instr)
             : rig.device.copy(lane, rig.memory + at, rig.host + at, bytes, &instr);
    if (random() % 4 == 0) rig.device.signal(lane);
    moved[back] += bytes;
    at += bytes;
  }
  rig.device.synchronise_all();
  EXPECT_EQ(rig.device.bytes_copied(Lane::h2d), moved[0]);
  EXPECT_EQ(rig.device.bytes_copied(Lane::d2h), moved[1]);
  std::vector<char> seen(kBytes);
  rig.device.download(seen.data(), rig.memory, kBytes);
  EXPECT_TRUE(seen == memory);
  EXPECT_TRUE(std::equal(host.begin(), host.end(), rig.host));
  EXPECT_EQ(reports(), "");
}

TEST(CudaDevice, AWaitForATicketWhoseEventWasReusedStillHolds) {
  cuda::CudaDeviceOptions options;
  options.events = 2;
  options.merge_below = 0;
  for (int round = 0; round < 3; ++round) {
    Rig rig(options, 1 << 20);
    const Instr fetch = named("fetch"), back = named("back");
    std::vector<Ticket> tickets;
    for (int i = 0; i < 8; ++i) {
      tickets.push_back(
          rig.device.copy(Lane::h2d, rig.memory + i * 4096, rig.host + i * 4096, 4096, &fetch));
      rig.device.signal(Lane::h2d);
    }
    for (int i = 0; i < 8; ++i) {
      rig.device.wait(Lane::d2h, Lane::h2d, tickets[i]);
      rig.device.copy(Lane::d2h, rig.host + 65536 + i * 4096, rig.memory + i * 4096, 4096, &back);
    }
    rig.device.synchronise_all();
    ASSERT_EQ(reports(), "");
  }
  Rig rig(options, 4096);
  EXPECT_THROW(rig.device.wait(Lane::compute, Lane::h2d, 1), Error);  // not issued yet
}

TEST(CudaDevice, ProgressCanBeReadFromOutside) {
  Rig rig;
  const Instr first = named("first"), second = named("second");
  EXPECT_EQ(rig.device.running(Lane::h2d), nullptr);
  const Ticket a = rig.device.copy(Lane::h2d, rig.memory, rig.host, 4096, &first);
  const Ticket b = rig.device.copy(Lane::h2d, rig.memory + 8192, rig.host, 4096, &second);
  EXPECT_EQ(b, a + 1);
  // The second is not even given to the stream yet.
  EXPECT_LT(rig.device.completed(Lane::h2d), b);
  const Instr* running = rig.device.running(Lane::h2d);
  EXPECT_TRUE(running == &first || running == &second);
  rig.device.synchronise(Lane::h2d, b);
  EXPECT_EQ(rig.device.completed(Lane::h2d), b);
  EXPECT_EQ(rig.device.running(Lane::h2d), nullptr);
}

struct Seen {
  std::vector<std::pair<const Instr*, LaneTimes>> times;
  static void sink(void* context, Lane, const Instr* instr, const LaneTimes& times) {
    static_cast<Seen*>(context)->times.emplace_back(instr, times);
  }
};

TEST(CudaDevice, TimesComeBeforeSynchroniseReturns) {
  cuda::CudaDeviceOptions options;
  options.timed_entries = 4;  // fewer than are taken
  Rig rig(options);
  std::vector<Instr> instrs(20, named("timed"));
  Seen seen;
  const std::vector<char> zeros(kBytes);
  rig.device.upload(rig.memory, zeros.data(), kBytes);
  rig.device.record_times(Seen::sink, &seen);
  for (size_t i = 0; i < instrs.size(); ++i)
    rig.device.copy(i % 2 ? Lane::h2d : Lane::d2h, i % 2 ? rig.memory : rig.host + 65536,
                    i % 2 ? rig.host : rig.memory + 65536, 256, &instrs[i]);
  rig.device.synchronise_all();
  EXPECT_EQ(reports(), "");
  ASSERT_EQ(seen.times.size(), instrs.size());
  for (size_t i = 0; i < instrs.size(); ++i) {
    EXPECT_EQ(seen.times[i].first, &instrs[i]);
    EXPECT_LE(seen.times[i].second.begin, seen.times[i].second.end);
  }
  // Only compute instructions that wait.
  seen.times.clear();
  rig.device.record_times(Seen::sink, &seen, Device::Timed::waits);
  const Ticket ticket = rig.device.copy(Lane::h2d, rig.memory, rig.host, 256, &instrs[0]);
  rig.device.launch(Lane::compute, OpKind::add, KernelArgs(), &instrs[1]);
  rig.device.wait(Lane::compute, Lane::h2d, ticket);
  rig.device.launch(Lane::compute, OpKind::add, KernelArgs(), &instrs[2]);
  rig.device.synchronise_all();
  ASSERT_EQ(seen.times.size(), 1u);
  EXPECT_EQ(seen.times[0].first, &instrs[2]);
}

TEST(CudaDevice, NothingIsAllocatedOnceArenasStand) {
  Rig rig;
  const emulated::Allocations before = emulated::allocations();
  const Instr instr = named("any");
  for (int i = 0; i < 5000; ++i) {
    rig.device.copy(Lane::h2d, rig.memory, rig.host, 512, &instr);
    if (i % 3 == 0) rig.device.signal(Lane::h2d);
    rig.device.wait(Lane::compute, Lane::h2d,
                    rig.device.copy(Lane::h2d, rig.memory + 4096, rig.host, 512, &instr));
    rig.device.launch(Lane::compute, OpKind::add, KernelArgs(), &instr);
  }
  rig.device.synchronise_all();
  const emulated::Allocations after = emulated::allocations();
  EXPECT_EQ(before.device, after.device);
  EXPECT_EQ(before.pinned, after.pinned);
  EXPECT_EQ(before.streams, after.streams);
  EXPECT_EQ(before.events, after.events);
}

TEST(CudaDevice, ForeignBytesAreWhatIsNotTheArena) {
  Rig rig;
  EXPECT_EQ(rig.device.foreign_bytes(), emulated::faults::limits().foreign_bytes);
}

}  // namespace
}  // namespace spillway
