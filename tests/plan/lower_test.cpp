// Lowered programs of real models under random placements: every key lands where the placement
// says.
// links: spillway_plan spillway_model
#include <gtest/gtest.h>

#include <random>

#include "model/model.h"
#include "parallel/build.h"
#include "program/stages.h"

namespace spillway {
namespace {

struct Built {
  Schedule train, evaluate;
};

Built build(int layers, int ranks, int rank, int micro_batches, int zero, Precision precision,
            ScheduleChoice choice) {
  Config c;
  c.model = {.family = Family::llama,
             .layers = layers,
             .hidden = 32,
             .heads = 4,
             .kv_heads = 2,
             .ffn = 48,
             .context = 16};
  c.model.head_dim = 8;
  c.model.vocab = 257;
  c.model.tied_head = true;
  c.train.batch = 2 * micro_batches * ranks;
  c.train.micro_batch = 2;
  c.train.precision = precision;
  c.parallel.zero = zero;
  const ParallelSpec spec = parallel_spec(c, rank, ranks, ranks);
  const GraphShape shape{2, 16, micro_batches, c.train.batch * 16};
  const Graph forward = build_model(c.model, precision, 8, shape, GraphMode::train);
  return {build_train_schedule(forward, c.optimizer, spec, choice),
          build_forward_schedule("evaluate", forward, spec)};
}

TEST(Lower, RandomPlacements) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 rng(seed);
  for (int trial = 0; trial < 40; ++trial) {
    const int ranks = 1 + rng() % 3;
    const Built b = build(3 + rng() % 3, ranks, rng() % ranks, 1 + rng() % 4, rng() % 4,
                          rng() % 2 ? Precision::bf16 : Precision::f32, {1});
    Placement placement;
    for (const PlaceUnit& unit : place_units(b.train)) {
      const int choices = unit.recomputable ? 3 : 2;
      placement.where[unit.key] = static_cast<Where>(rng() % choices);
      placement.slots[unit.key.first] = 1 + rng() % 3;
    }
    Lowered lowered = lower({&b.train, &b.evaluate}, placement, {.threads = 2}, 4096);
    if (trial % 2)
      order_copies(lowered.set, 4096,
                   [&](const Program&, const Instr&) { return static_cast<double>(rng() % 100); });
    const ArenaLayout layout = pack(lowered.set);
    synchronise(lowered.set, layout);
    const Outline outlined = outline({&b.train, &b.evaluate}, placement, {.threads = 2}, 4096);
    const ArenaLayout same = pack(outlined);
    EXPECT_EQ(same.offset, layout.offset);
    EXPECT_EQ(same.version_stride, layout.version_stride);
    for (int t = 0; t < kTierCount; ++t) EXPECT_EQ(same.tier_bytes[t], layout.tier_bytes[t]);
    EXPECT_EQ(outlined.io, lowered.io);
    int64_t copies = 0, waits = 0;
    for (const Instr& i : lowered.set.programs[0].instrs) {
      copies += i.kind == InstrKind::copy;
      waits += i.waits.size();
      for (const Access& a : i.access) {
        const Buffer& buffer = lowered.set.buffers[a.buffer];
        ASSERT_LE(a.offset + a.bytes, buffer.bytes) << i.name << " in " << buffer.name;
      }
    }
    EXPECT_GT(copies, 3);
    EXPECT_GT(waits, 0);
  }
}

// Parameters on the host, and gathered ones, travel once a group and pass; activations of all
// micro-batches of a group are alive at once.
TEST(Lower, AGroupSharesTheTrafficOfParametersAndKeepsItsActivations) {
  for (const int zero : {1, 3}) {
    int64_t fetched[5] = {}, gathered[5] = {}, kept[5] = {};
    for (const int32_t group : {1, 2, 4}) {
      const Schedule train = build(4, 2, 0, 4, zero, Precision::bf16, {.group = group}).train;
      Placement placement;
      for (const PlaceUnit& unit : place_units(train))
        placement.where[unit.key] = unit.key.first == "parameters" ? Where::host : Where::device;
      const Lowered lowered = lower({&train}, placement, {}, 0);
      const Program& program = lowered.set.programs[0];
      for (const Segment& segment : program.segments) {
        if (segment.name == "update") continue;
        for (InstrId id = segment.begin; id < segment.end; ++id) {
          const Instr& i = program.instrs[id];
          if (i.lane == Lane::h2d && lowered.set.buffers[i.out[0].buffer].place == "parameters")
            fetched[group] += segment.trip * i.in[0].bytes();
          if (i.kind == InstrKind::exchange && i.name.ends_with("gather_parameters"))
            for (const ProgramOperand& o : i.out) gathered[group] += segment.trip * o.bytes();
        }
      }
      for (const Buffer& b : lowered.set.buffers)
        if (b.place == "qkv") kept[group] += b.bytes * b.versions;
    }
    EXPECT_GT(fetched[1], 0);
    EXPECT_EQ(gathered[1] > 0, zero == 3);
    for (const int group : {2, 4}) {
      EXPECT_EQ(fetched[group] * group, fetched[1]) << "groups of " << group;
      EXPECT_EQ(gathered[group] * group, gathered[1]) << "groups of " << group;
      EXPECT_EQ(kept[group], kept[1] * group) << "groups of " << group;
    }
  }
}

TEST(Lower, HostActivationsLeaveTheDevice) {
  const Built b = build(6, 1, 0, 2, 0, Precision::f32, {1});
  Placement resident;
  const auto device_bytes = [&](const Placement& p) {
    return pack(lower({&b.train}, p, {}, 0).set).tier_bytes[0];
  };
  const int64_t all = device_bytes(resident);
  for (const char* place : {"qkv", "ffn_up", "moments", "gradients", "parameters"}) {
    Placement p;
    int64_t bytes = 0;
    for (const PlaceUnit& unit : place_units(b.train))
      if (unit.key.first == place) p.where[unit.key] = Where::host, bytes += unit.bytes;
    std::map<std::string, int64_t> rings;
    const Lowered lowered = lower({&b.train}, p, {}, 0);
    int64_t ring = 0;
    for (const Buffer& buffer : lowered.set.buffers)
      if (buffer.name.starts_with("ring ")) ring += round_up(buffer.bytes, 256) * buffer.versions;
    std::printf("%s: -%ld + %ld\n", place, long(bytes), long(ring));
    EXPECT_LE(device_bytes(p), all - bytes + ring + 64 * 256) << place;
  }
}

}  // namespace
}  // namespace spillway
