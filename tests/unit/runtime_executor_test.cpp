// The executor on random toy programs: every interleaving of the lanes that the waits allow gives
// what an interpreter that runs one instruction after the other gives; waits mean what
// program/program.h says; nothing is allocated while programs run.
// links: spillway_runtime_cpu
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "base/error.h"
#include "runtime/cpu/cpu_device.h"
#include "runtime/executor.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNT_ALLOCATIONS 1
static std::atomic<long> allocations{0};
extern "C" void* __libc_malloc(size_t);
extern "C" void* malloc(size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(size);
}
#endif

namespace spillway {
namespace {

constexpr int64_t kCount = 64;  // floats a buffer
constexpr int64_t kBytes = kCount * 4;

// out = f(in…): the order of operands, the micro-batch and the attributes all show in the result.
void mix(const KernelArgs& args) {
  float* out = args.out[0].as<float>();
  for (int64_t i = 0; i < args.out[0].dims.count(); ++i) {
    float sum = static_cast<float>(args.micro) + args.attrs->eps;
    if (args.accumulate) sum += out[i];
    for (int k = 0; k < args.in_count; ++k)
      sum += static_cast<float>(k + 1) * args.in[k].as<float>()[i];
    out[i] = sum * 0.37f;
  }
}
Kernel toy(OpKind) { return mix; }

struct Toy {
  ProgramSet set;
  ArenaLayout layout;
};

ProgramOperand operand(BufferId buffer, Affine version = {}) {
  ProgramOperand o;
  o.buffer = buffer;
  o.version = version;
  o.dims = Dims(kCount);
  return o;
}
void declare(Instr& instr) {
  instr.access.clear();
  for (const ProgramOperand& o : instr.in)
    instr.access.push_back({o.buffer, o.version, o.offset, o.bytes(), false});
  for (const ProgramOperand& o : instr.out)
    instr.access.push_back({o.buffer, o.version, o.offset, o.bytes(), true});
}
BufferId add_buffer(Toy& toy, Tier tier, int versions, Scope scope = Scope::step) {
  Buffer b;
  b.name = "buffer" + std::to_string(toy.set.buffers.size());
  b.tier = tier;
  b.scope = scope;
  b.bytes = kBytes;
  b.versions = versions;
  int64_t& end = toy.layout.tier_bytes[static_cast<int>(tier)];
  toy.set.buffers.push_back(b);
  toy.layout.offset.push_back(end);
  toy.layout.version_stride.push_back(kBytes);
  end += versions * kBytes;
  return static_cast<BufferId>(toy.set.buffers.size()) - 1;
}
Instr op(std::vector<ProgramOperand> in, ProgramOperand out) {
  Instr i;
  i.name = "mix";
  i.attrs = 0;
  i.in = std::move(in);
  i.out = {out};
  declare(i);
  return i;
}
Instr copy(Lane lane, ProgramOperand from, ProgramOperand to) {
  Instr i;
  i.kind = InstrKind::copy;
  i.name = "copy";
  i.lane = lane;
  i.in = {from};
  i.out = {to};
  declare(i);
  return i;
}

// Waits for every instruction of another lane that shares a buffer with a writer among the two,
// wherever it stands in its body: more than needed, so surely enough.
void synchronise_amply(ProgramSet& set) {
  for (Program& program : set.programs)
    for (Instr& a : program.instrs) {
      a.entry_waits = 0xF;
      for (size_t on = 0; on < program.instrs.size(); ++on) {
        const Instr& b = program.instrs[on];
        bool conflict = false;
        for (const Access& x : a.access)
          for (const Access& y : b.access) conflict |= x.buffer == y.buffer && (x.write || y.write);
        if (conflict && a.lane != b.lane) a.waits.push_back({static_cast<InstrId>(on)});
      }
    }
}

Toy random_toy(uint64_t seed) {
  std::mt19937_64 random(seed);
  auto pick = [&](int n) { return static_cast<int>(random() % n); };
  Toy toy;
  const int device_buffers = 3 + pick(5), host_buffers = 1 + pick(4);
  std::vector<BufferId> device, host;
  for (int i = 0; i < device_buffers; ++i)
    device.push_back(add_buffer(toy, Tier::device, 1 + pick(3)));
  for (int i = 0; i < host_buffers; ++i) host.push_back(add_buffer(toy, Tier::host, 1 + pick(3)));
  for (int p = 0; p < 2; ++p) {
    Program program;
    program.name = "program" + std::to_string(p);
    program.attrs.resize(1);
    program.attrs[0].eps = 0.5f;
    for (int s = 0; s < 1 + pick(3); ++s) {
      Segment segment;
      segment.trip = pick(6);
      segment.begin = static_cast<InstrId>(program.instrs.size());
      for (int n = 1 + pick(8); n > 0; --n) {
        auto any = [&](const std::vector<BufferId>& from) {
          return operand(from[random() % from.size()], {pick(5) - 2, pick(2)});
        };
        const int kind = pick(4);
        if (kind == 0) {
          program.instrs.push_back(copy(Lane::h2d, any(host), any(device)));
        } else if (kind == 1) {
          program.instrs.push_back(copy(Lane::d2h, any(device), any(host)));
        } else {
          Instr i = op({any(device), any(device)}, any(device));
          i.accumulate = pick(2);
          i.micro = {pick(4), pick(3)};
          program.instrs.push_back(i);
        }
      }
      segment.end = static_cast<InstrId>(program.instrs.size());
      program.segments.push_back(segment);
    }
    toy.set.programs.push_back(program);
  }
  synchronise_amply(toy.set);
  return toy;
}

// Arenas as plain vectors, one instruction after the other.
struct Interpreter {
  const Toy& toy;
  std::vector<float> memory[kTierCount];
  explicit Interpreter(const Toy& t) : toy(t) {
    for (int i = 0; i < kTierCount; ++i) memory[i].resize(t.layout.tier_bytes[i] / 4);
  }
  float* at(const ProgramOperand& o, int iteration) {
    const Buffer& b = toy.set.buffers[o.buffer];
    const int version = o.version.base + o.version.step * iteration;
    const int slot = ((version % b.versions) + b.versions) % b.versions;
    return memory[static_cast<int>(b.tier)].data() +
           (toy.layout.offset[o.buffer] + slot * toy.layout.version_stride[o.buffer]) / 4;
  }
  void run(int index, int override) {
    const Program& program = toy.set.programs[index];
    for (const Segment& segment : program.segments)
      for (int i = 0; i < segment.trip; ++i)
        for (InstrId id = segment.begin; id < segment.end; ++id) {
          const Instr& instr = program.instrs[id];
          if (instr.kind == InstrKind::copy) {
            std::memcpy(at(instr.out[0], i), at(instr.in[0], i), kBytes);
            continue;
          }
          KernelArgs args;
          for (const auto& o : instr.in) args.in[args.in_count++] = {at(o, i), o.dtype, o.dims};
          args.out[args.out_count++] = {at(instr.out[0], i), Dtype::f32, Dims(kCount)};
          args.attrs = &program.attrs[0];
          args.accumulate = instr.accumulate;
          args.micro = override >= 0 ? override : instr.micro.base + instr.micro.step * i;
          mix(args);
        }
  }
};

TEST(Executor, RandomProgramsUnderRandomDelays) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Toy toy = random_toy(seed);
    Interpreter expected(toy);
    CpuDeviceOptions options;
    options.chaos_seed = seed;
    options.chaos_us = 60;
    options.chaos_lanes = 0xF;
    options.queue_depth = 1 + static_cast<int>(seed % 40);
    CpuDevice device(spillway::toy, nullptr, options);
    Executor executor(toy.set, toy.layout, device);
    std::mt19937 random(seed);
    for (BufferId b = 0; b < static_cast<BufferId>(toy.set.buffers.size()); ++b)
      for (int v = 0; v < toy.set.buffers[b].versions; ++v) {
        std::vector<float> values(kCount);
        for (float& x : values) x = static_cast<float>(random() % 1000) / 1000;
        device.upload(executor.address(b, v), values.data(), kBytes);
        std::memcpy(expected.at(operand(b, {v, 0}), 0), values.data(), kBytes);
      }
    for (int index : {0, 1, 1, 0}) {
      const int override = seed % 3 == 0 ? 7 : -1;
      executor.run(index, override);
      expected.run(index, override);
    }
    executor.finish();
    for (BufferId b = 0; b < static_cast<BufferId>(toy.set.buffers.size()); ++b)
      for (int v = 0; v < toy.set.buffers[b].versions; ++v)
        ASSERT_EQ(std::memcmp(executor.address(b, v), expected.at(operand(b, {v, 0}), 0), kBytes),
                  0)
            << toy.set.buffers[b].name << " version " << v;
  }
}

// A device that only writes down what it is told.
struct Recorder : Device {
  struct Told {
    Lane lane, on;
    Ticket ticket;
  };
  std::vector<Told> waits;
  Ticket next[kLaneCount] = {0, 0, 0, 0};
  std::vector<char> memory[kTierCount];
  std::vector<std::vector<ExchangeArgs::Part>> exchanged;

  void* reserve(Tier t, int64_t n) override {
    memory[static_cast<int>(t)].resize(n);
    return memory[static_cast<int>(t)].data();
  }
  Ticket take(Lane l) { return ++next[static_cast<int>(l)]; }
  Ticket launch(Lane l, OpKind, const KernelArgs&, const Instr*) override { return take(l); }
  Ticket copy(Lane l, void*, const void*, int64_t, const Instr*) override { return take(l); }
  Ticket exchange(Lane l, const ExchangeArgs& a, const Instr*) override {
    exchanged.emplace_back(a.parts.begin(), a.parts.end());
    return take(l);
  }
  Ticket fill(Lane l, void*, uint8_t, int64_t) override { return take(l); }
  void wait(Lane l, Lane on, Ticket t) override { waits.push_back({l, on, t}); }
  void synchronise(Lane, Ticket) override {}
  void synchronise_all() override {}
  void upload(void*, const void*, int64_t) override {}
  void download(void*, const void*, int64_t) override {}
  Ticket completed(Lane) const override { return 0; }
  const Instr* running(Lane) const override { return nullptr; }
  int64_t bytes_copied(Lane) const override { return 0; }
  void record_times(TimeSink, void*, Timed) override {}
};

// One iteration: h2d copy (which waits on the previous iteration's op), then the op (which waits on
// the copy).
Toy ping_pong(int trip) {
  Toy toy;
  const BufferId host = add_buffer(toy, Tier::host, 1), device = add_buffer(toy, Tier::device, 1);
  Program program;
  program.name = "ping-pong";
  program.attrs.resize(1);
  program.instrs = {copy(Lane::h2d, operand(host), operand(device)),
                    op({operand(device)}, operand(device))};
  program.instrs[0].waits = {{1}};
  program.instrs[0].entry_waits = 1 << static_cast<int>(Lane::compute);
  program.instrs[1].waits = {{0}};
  program.segments = {{"all", trip, 0, 2}};
  toy.set.programs = {program};
  return toy;
}

TEST(Executor, WaitsReferToTheMostRecentInstanceOfThisRun) {
  const Toy toy = ping_pong(3);
  Recorder device;
  Executor executor(toy.set, toy.layout, device);
  auto told = [&](size_t i, Lane lane, Lane on, Ticket ticket) {
    ASSERT_LT(i, device.waits.size());
    EXPECT_EQ(device.waits[i].lane, lane) << i;
    EXPECT_EQ(device.waits[i].on, on) << i;
    EXPECT_EQ(device.waits[i].ticket, ticket) << i;
  };
  executor.run(0);
  ASSERT_EQ(device.waits.size(), 5u);
  told(0, Lane::compute, Lane::h2d, 1);  // the first copy found no op to wait for
  told(1, Lane::h2d, Lane::compute, 1);
  told(2, Lane::compute, Lane::h2d, 2);
  told(3, Lane::h2d, Lane::compute, 2);
  told(4, Lane::compute, Lane::h2d, 3);
  device.waits.clear();
  executor.run(0);
  // The second run: the copy waits for the end of the first run's compute lane, which is not an
  // instance of this run.
  told(0, Lane::h2d, Lane::compute, 3);
  told(1, Lane::compute, Lane::h2d, 4);
}

TEST(Executor, ExchangePartsFollowTheVersions) {
  Toy toy;
  const BufferId ring = add_buffer(toy, Tier::device, 3), other = add_buffer(toy, Tier::device, 2);
  Instr instr;
  instr.kind = InstrKind::exchange;
  instr.lane = Lane::comm;
  instr.name = "exchange";
  instr.sequence = 0;
  instr.in = {operand(ring, {1, 1})};
  instr.out = {operand(other, {0, 1})};
  instr.transfers = {{1, true, 0}, {2, false, 0}};
  declare(instr);
  Program program;
  program.name = "exchanges";
  program.instrs = {instr};
  for (int trip : {1, 4, 13}) {
    program.segments = {{"all", trip, 0, 1}};
    toy.set.programs = {program};
    Recorder device;
    Executor executor(toy.set, toy.layout, device);
    executor.run(0);
    ASSERT_EQ(device.exchanged.size(), static_cast<size_t>(trip));
    for (int i = 0; i < trip; ++i) {
      const auto& parts = device.exchanged[i];
      ASSERT_EQ(parts.size(), 2u);
      EXPECT_EQ(parts[0].peer, 1);
      EXPECT_TRUE(parts[0].send);
      EXPECT_EQ(parts[0].data, executor.address(ring, (1 + i) % 3)) << i << " of " << trip;
      EXPECT_EQ(parts[1].peer, 2);
      EXPECT_FALSE(parts[1].send);
      EXPECT_EQ(parts[1].data, executor.address(other, i % 2)) << i << " of " << trip;
      EXPECT_EQ(parts[0].bytes, kBytes);
    }
  }
}

TEST(Executor, ARunOfPeersIsOnePart) {
  Toy toy;
  const BufferId sent = add_buffer(toy, Tier::device, 1), all = add_buffer(toy, Tier::device, 1);
  Instr instr;
  instr.kind = InstrKind::exchange;
  instr.lane = Lane::comm;
  instr.name = "exchange";
  instr.sequence = 0;
  instr.in = {operand(sent)};
  instr.out = {operand(all)};
  const int64_t each = kBytes / 4;
  instr.transfers = {{1, true, 0, 3, 8, true}, {1, false, 0, 4, 2}};
  declare(instr);
  Program program;
  program.name = "exchanges";
  program.instrs = {instr};
  program.segments = {{"all", 1, 0, 1}};
  toy.set.programs = {program};
  Recorder device;
  Executor executor(toy.set, toy.layout, device);
  executor.run(0);
  std::vector<std::pair<int, void*>> messages;
  for (const ExchangeArgs::Part& part : device.exchanged.at(0)) {
    EXPECT_EQ(part.bytes, part.send ? kBytes : each);
    EXPECT_EQ(part.extent(), kBytes);
    part.each([&](int peer, char* data) { messages.emplace_back(peer, data); });
  }
  std::vector<std::pair<int, void*>> expected;
  for (const int peer : {1, 9, 17}) expected.emplace_back(peer, executor.address(sent));
  for (int k = 0; k < 4; ++k) expected.emplace_back(1 + 2 * k, executor.address(all, 0, k * each));
  EXPECT_EQ(messages, expected);
  // Parts that are not equal, and several senders of one whole.
  for (const ProgramTransfer wrong :
       {ProgramTransfer{1, false, 0, 3, 1}, {1, false, 0, 2, 1, true}}) {
    toy.set.programs[0].instrs[0].transfers[1] = wrong;
    EXPECT_THROW(Executor(toy.set, toy.layout, device), Error);
  }
}

TEST(Executor, RefusesWhatIsNotDeclared) {
  Toy toy = ping_pong(1);
  toy.set.programs[0].instrs[1].access.pop_back();  // the op's write
  Recorder device;
  EXPECT_THROW(Executor(toy.set, toy.layout, device), Error);
  toy = ping_pong(1);
  toy.layout.offset[1] += 256;  // beyond the arena
  EXPECT_THROW(Executor(toy.set, toy.layout, device), Error);
}

TEST(Executor, PoisonFillsDeadBuffersAndOnlyThose) {
  Toy toy;
  const BufferId host = add_buffer(toy, Tier::host, 1, Scope::run);
  const BufferId dead = add_buffer(toy, Tier::device, 2, Scope::iteration);
  const BufferId carried = add_buffer(toy, Tier::device, 1, Scope::iteration);
  const BufferId result = add_buffer(toy, Tier::device, 1, Scope::step);
  Program program;
  program.name = "poison";
  program.attrs.resize(1);
  program.instrs = {copy(Lane::h2d, operand(host), operand(dead, {0, 1})),
                    op({operand(dead, {0, 1}), operand(carried)}, operand(result)),
                    op({operand(result)}, operand(carried))};
  program.segments = {{"all", 3, 0, 3}};
  toy.set.programs = {program};
  synchronise_amply(toy.set);
  float plain = 0;
  for (bool poison : {false, true}) {
    CpuDeviceOptions options;
    options.chaos_seed = 3;
    options.chaos_us = 100;
    options.chaos_lanes = 0xF;
    CpuDevice device(spillway::toy, nullptr, options);
    Executor executor(toy.set, toy.layout, device, {poison});
    const std::vector<float> ones(kCount, 1.0f);
    device.upload(executor.address(host), ones.data(), kBytes);
    executor.run(0);
    executor.run(0);
    executor.finish();
    const float value = static_cast<float*>(executor.address(result))[5];
    EXPECT_EQ(value, value) << "the result read poison";
    if (!poison) plain = value;
    EXPECT_EQ(value, plain);
    for (int v = 0; v < 2; ++v) {
      const uint8_t byte = static_cast<uint8_t*>(executor.address(dead, v))[17];
      EXPECT_EQ(byte == 0xFF, poison) << v;
    }
    EXPECT_EQ(static_cast<float*>(executor.address(host))[0], 1);
    EXPECT_NE(static_cast<uint8_t*>(executor.address(carried))[17], 0xFF);
  }
}

#ifdef COUNT_ALLOCATIONS
TEST(Executor, AllocatesNothingWhileProgramsRun) {
  const Toy toy = random_toy(11);
  CpuDevice device(spillway::toy, nullptr);
  Executor executor(toy.set, toy.layout, device);
  executor.run(0);
  executor.finish();
  const long before = allocations.load();
  for (int i = 0; i < 50; ++i) {
    executor.run(0);
    executor.run(1);
  }
  executor.finish();
  EXPECT_EQ(allocations.load() - before, 0);
}
#endif

}  // namespace
}  // namespace spillway
