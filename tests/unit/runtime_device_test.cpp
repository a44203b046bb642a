// The CPU device: arenas and their guards, lanes and waits, pacing, pointer checks, errors.
// links: spillway_runtime_cpu
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "base/error.h"
#include "runtime/cpu/cpu_device.h"

namespace spillway {
namespace {

std::atomic<bool> gate{true};

void gated(const KernelArgs& args) {
  while (!gate.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  args.out[0].as<float>()[0] += 1;
}
void broken(const KernelArgs&) { bad_input("a broken kernel"); }
Kernel toy(OpKind op) {
  if (op == OpKind::add) return gated;
  if (op == OpKind::gelu) return broken;
  return nullptr;
}

KernelArgs on(void* data, int64_t count) {
  KernelArgs args;
  args.out[args.out_count++] = {data, Dtype::f32, Dims(count)};
  return args;
}

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Arena, IsAlignedZeroAndGuarded) {
  for (int64_t bytes : {int64_t{1}, int64_t{4096}, int64_t{1000000}, int64_t{(3 << 20) + 256}}) {
    Arena arena;
    arena.reserve("device", bytes);
    char* begin = arena.begin();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(begin) % 256, 0u);
    EXPECT_EQ(begin[0], 0);
    begin[bytes - 1] = 1;
    EXPECT_TRUE(arena.contains(begin, bytes));
    EXPECT_FALSE(arena.contains(begin, bytes + 1));
    EXPECT_FALSE(arena.contains(begin - 1, 1));
    EXPECT_FALSE(arena.contains(begin + bytes, 1));
    volatile char* end = begin + round_up(bytes, 256);
    EXPECT_DEATH(*end = 1, "") << bytes;
  }
}

TEST(Arena, NamesWhatDoesNotFit) {
  Arena arena;
  try {
    arena.reserve("host", int64_t{1} << 60);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::does_not_fit);
    EXPECT_NE(std::string(e.what()).find("host"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("1152921504606846976"), std::string::npos) << e.what();
  }
}

TEST(CpuDevice, AWaitHoldsOneLaneAndNoOther) {
  CpuDevice device(toy, nullptr);
  char* d = static_cast<char*>(device.reserve(Tier::device, 4096));
  char* h = static_cast<char*>(device.reserve(Tier::host, 4096));
  gate = false;
  const Ticket kernel = device.launch(Lane::compute, OpKind::add, on(d, 1), nullptr);
  device.wait(Lane::h2d, Lane::compute, kernel);
  device.copy(Lane::h2d, d, h, 256, nullptr);
  const Ticket free = device.copy(Lane::d2h, h + 1024, d + 1024, 256, nullptr);
  device.synchronise(Lane::d2h, free);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(device.completed(Lane::compute), 0u);
  EXPECT_EQ(device.completed(Lane::h2d), 0u);
  EXPECT_EQ(device.completed(Lane::d2h), 1u);
  gate = true;
  device.synchronise_all();
  EXPECT_EQ(device.completed(Lane::h2d), 1u);
  float value = -1;
  device.download(&value, d, 4);
  EXPECT_EQ(value, 0) << "the copy ran after the kernel and overwrote its 1";
  EXPECT_EQ(device.bytes_copied(Lane::h2d), 256);
  EXPECT_EQ(device.bytes_copied(Lane::d2h), 256);
}

TEST(CpuDevice, AFullQueueBlocksTheIssuerAndLosesNothing) {
  CpuDeviceOptions options;
  options.queue_depth = 3;
  CpuDevice device(toy, nullptr, options);
  float* d = static_cast<float*>(device.reserve(Tier::device, 4096));
  gate = false;
  std::thread opener([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    gate = true;
  });
  for (int i = 0; i < 100; ++i) device.launch(Lane::compute, OpKind::add, on(d, 1), nullptr);
  device.synchronise_all();
  opener.join();
  EXPECT_EQ(d[0], 100);
}

TEST(CpuDevice, TheRunningInstructionIsVisible) {
  CpuDevice device(toy, nullptr);
  float* d = static_cast<float*>(device.reserve(Tier::device, 4096));
  Instr instr;
  instr.name = "blk.0.add";
  instr.out.push_back({0, {}, 0, Dtype::f32, Dims(1), false});
  gate = false;
  device.launch(Lane::compute, OpKind::add, on(d, 1), &instr);
  while (device.running(Lane::compute) == nullptr) std::this_thread::yield();
  EXPECT_EQ(device.running(Lane::compute), &instr);
  gate = true;
  device.synchronise_all();
  EXPECT_EQ(device.running(Lane::compute), nullptr);
}

TEST(CpuDevice, RefusesPointersOutsideTheArena) {
  std::vector<float> outside(64);
  {
    CpuDevice device(toy, nullptr);
    device.reserve(Tier::device, 4096);
    Instr instr;
    instr.name = "blk.7.add";
    device.launch(Lane::compute, OpKind::add, on(outside.data(), 1), nullptr);
    const std::string said = message_of([&] { device.synchronise_all(); });
    EXPECT_NE(said.find("outside the device arena"), std::string::npos) << said;
  }
  {
    CpuDevice device(toy, nullptr);
    float* d = static_cast<float*>(device.reserve(Tier::device, 4096));
    Instr instr;
    instr.name = "blk.7.add";
    instr.out.push_back({0, {}, 0, Dtype::f32, Dims(8), false});
    device.launch(Lane::compute, OpKind::add, on(d, 9), &instr);
    const std::string said = message_of([&] { device.synchronise_all(); });
    EXPECT_NE(said.find("compute lane, blk.7.add: operand out[0] has 36 bytes, 32 declared"),
              std::string::npos)
        << said;
  }
  {
    CpuDevice device(toy, nullptr);
    char* d = static_cast<char*>(device.reserve(Tier::device, 4096));
    char* h = static_cast<char*>(device.reserve(Tier::host, 4096));
    device.copy(Lane::h2d, h, d, 16, nullptr);  // the wrong way
    const std::string said = message_of([&] { device.synchronise_all(); });
    EXPECT_NE(said.find("outside the host arena"), std::string::npos) << said;
  }
}

TEST(CpuDevice, AnErrorSkipsWhatFollowsOnAllLanes) {
  CpuDevice device(toy, nullptr);
  float* d = static_cast<float*>(device.reserve(Tier::device, 4096));
  float* h = static_cast<float*>(device.reserve(Tier::host, 4096));
  h[0] = 5;
  Instr instr;
  instr.name = "blk.2.broken";
  const Ticket ticket = device.launch(Lane::compute, OpKind::gelu, KernelArgs(), &instr);
  device.wait(Lane::h2d, Lane::compute, ticket);
  device.copy(Lane::h2d, d, h, 4, nullptr);
  device.launch(Lane::compute, OpKind::add, on(d, 1), nullptr);
  for (int i = 0; i < 2; ++i) {
    try {
      device.synchronise_all();
      FAIL() << "no error";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::bad_input);
      EXPECT_STREQ(e.what(), "compute lane, blk.2.broken: a broken kernel");
    }
  }
  EXPECT_EQ(d[0], 0);
  EXPECT_EQ(device.bytes_copied(Lane::h2d), 0);
}

TEST(CpuDevice, CopiesAreNeverFasterThanTheLink) {
  CpuDeviceOptions options;
  options.link = 1e8;
  CpuDevice device(toy, nullptr, options);
  const int64_t bytes = 1 << 20;
  char* d = static_cast<char*>(device.reserve(Tier::device, 2 * bytes));
  char* h = static_cast<char*>(device.reserve(Tier::host, 2 * bytes));
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 10; ++i) {
    device.copy(Lane::h2d, d, h, bytes, nullptr);
    device.copy(Lane::d2h, h + bytes, d + bytes, bytes, nullptr);
  }
  device.synchronise_all();
  const double took =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  // Both directions at once, each 10 MiB at 100 MB/s. The upper bound is for a machine in trouble.
  EXPECT_GE(took, 10.0 * bytes / options.link);
  EXPECT_LT(took, 60);
  std::printf("10 MiB each way at 100 MB/s: %.4f s, ideal %.4f s\n", took,
              10.0 * bytes / options.link);
}

TEST(CpuDevice, APauseOfTheLaneEarnsNoCredit) {
  CpuDeviceOptions options;
  options.link = 1e8;
  CpuDevice device(toy, nullptr, options);
  const int64_t bytes = 1 << 20;
  char* d = static_cast<char*>(device.reserve(Tier::device, 2 * bytes));
  char* h = static_cast<char*>(device.reserve(Tier::host, bytes));
  gate = false;
  const Ticket kernel = device.launch(Lane::compute, OpKind::add, on(d + bytes, 1), nullptr);
  device.wait(Lane::h2d, Lane::compute, kernel);
  device.fill(Lane::h2d, d, 1, 256);  // waits; the copy behind it does not
  device.copy(Lane::h2d, d, h, bytes, nullptr);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto begin = std::chrono::steady_clock::now();
  gate = true;
  device.synchronise_all();
  const double took =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_GE(took, static_cast<double>(bytes) / options.link);
}

struct Seen {
  std::vector<LaneTimes> times;
  std::vector<const Instr*> instrs;
};

TEST(CpuDevice, TimesAreThoseOfTheInstructionsIssuedWhileRecording) {
  CpuDevice device(toy, nullptr);
  float* d = static_cast<float*>(device.reserve(Tier::device, 4096));
  Instr instr;
  instr.name = "add";
  instr.out.push_back({0, {}, 0, Dtype::f32, Dims(1), false});
  Seen seen;
  device.launch(Lane::compute, OpKind::add, on(d, 1), &instr);
  device.record_times(
      [](void* context, Lane lane, const Instr* i, const LaneTimes& times) {
        EXPECT_EQ(lane, Lane::compute);
        static_cast<Seen*>(context)->times.push_back(times);
        static_cast<Seen*>(context)->instrs.push_back(i);
      },
      &seen);
  for (int i = 0; i < 5; ++i) device.launch(Lane::compute, OpKind::add, on(d, 1), &instr);
  device.record_times(nullptr, nullptr);
  device.launch(Lane::compute, OpKind::add, on(d, 1), &instr);
  device.synchronise_all();
  ASSERT_EQ(seen.times.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(seen.instrs[i], &instr);
    EXPECT_LE(seen.times[i].begin, seen.times[i].end);
    EXPECT_EQ(seen.times[i].waited, 0);
    if (i > 0) {
      EXPECT_LE(seen.times[i - 1].end, seen.times[i].begin);
    }
  }
}

TEST(CpuDevice, TheStartHookRunsOnTheComputeThread) {
  static thread_local int here = 0;
  static std::atomic<int> seen{0};
  CpuDeviceOptions options;
  options.compute_thread_start = [] { here = 42; };
  CpuDevice device([](OpKind) -> Kernel { return [](const KernelArgs&) { seen = here; }; }, nullptr,
                   options);
  device.launch(Lane::compute, OpKind::add, KernelArgs(), nullptr);
  device.synchronise_all();
  EXPECT_EQ(seen, 42);
}

}  // namespace
}  // namespace spillway
