// The simulator: cases reckoned by hand, and random programs against a naive reference.
// links: spillway_plan
#include "plan/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

namespace spillway {
namespace {

// Every rate a round number, nothing takes time to start.
HardwareProfile round_profile() {
  HardwareProfile p;
  p.name = "round";
  p.kind = "cuda";
  p.peak_f32 = p.peak_bf16 = 1e12;
  p.memory_bandwidth = 200;  // a copy within the device reads and writes: 100 bytes a second
  p.h2d_alone_bandwidth = p.d2h_alone_bandwidth = 100;
  p.h2d_bandwidth = p.d2h_bandwidth = 100;
  p.both_ways_bandwidth = 150;
  p.devices_per_node = 8;
  p.devices_per_uplink = 1;
  p.uplink_bandwidth = 100;
  p.host_bandwidth = p.cpu_update_bandwidth = 1e6;
  p.intra_node_bandwidth = 400;
  p.network_bandwidth = 50;
  return p;
}

// A program by hand: one segment, copies of bytes between the tiers and within the device, which
// stand for compute.
class Hand {
 public:
  Hand() {
    set.buffers.resize(2);
    set.buffers[0].tier = Tier::device;
    set.buffers[1].tier = Tier::host;
    set.programs.resize(1);
    program().name = "hand";
    program().segments.push_back({"all", 1, 0, 0});
  }
  Program& program() { return set.programs[0]; }
  InstrId add(Lane lane, int64_t bytes, std::vector<InstrId> waits = {}) {
    Instr i;
    i.kind = InstrKind::copy;
    i.lane = lane;
    i.in = {operand(lane == Lane::h2d ? 1 : 0, bytes)};
    i.out = {operand(lane == Lane::d2h ? 1 : 0, bytes)};
    return push(std::move(i), waits);
  }
  InstrId compute(int64_t seconds, std::vector<InstrId> waits = {}) {
    return add(Lane::compute, 100 * seconds, std::move(waits));
  }
  // Sends to `peer` and receives as much from it.
  InstrId exchange(int peer, int64_t bytes, std::vector<InstrId> waits = {}) {
    Instr i;
    i.kind = InstrKind::exchange;
    i.lane = Lane::comm;
    i.in = {operand(0, bytes)};
    i.out = {operand(0, bytes)};
    i.transfers = {{peer, true, 0}, {peer, false, 0}};
    return push(std::move(i), waits);
  }
  Simulation run(const HardwareProfile& profile, RankPlace place = {0, 1}) {
    return simulate(set, 0, machine_of(profile, place, false), true);
  }
  ProgramSet set;

 private:
  static ProgramOperand operand(BufferId buffer, int64_t bytes) {
    ProgramOperand o;
    o.buffer = buffer;
    o.dims = Dims(bytes / 4);
    return o;
  }
  InstrId push(Instr i, const std::vector<InstrId>& waits) {
    for (const InstrId on : waits) i.waits.push_back({on});
    program().instrs.push_back(std::move(i));
    return program().segments.back().end++;
  }
};

TEST(Simulate, TwoFlowsOnOneLink) {
  Hand hand;
  hand.add(Lane::h2d, 600);
  hand.add(Lane::d2h, 300);
  // 75 bytes a second each until 300 have gone both ways, then 300 more at 100.
  const Simulation s = hand.run(round_profile());
  EXPECT_DOUBLE_EQ(s.timeline[1].end, 4);
  EXPECT_DOUBLE_EQ(s.step_seconds, 4 + 3);
  EXPECT_DOUBLE_EQ(s.of(Lane::h2d), 7);  // compute has nothing to do all along
}

TEST(Simulate, DevicesBehindOneSwitch) {
  HardwareProfile p = round_profile();
  p.devices_per_uplink = 8;
  p.uplink_bandwidth = 200;
  for (const int ranks : {1, 2, 4, 8}) {
    Hand hand;
    hand.add(Lane::h2d, 600);
    EXPECT_DOUBLE_EQ(hand.run(p, {0, ranks}).step_seconds, 600 / std::min(100.0, 200.0 / ranks));
  }
}

TEST(Simulate, ExchangesInsideAndAcrossNodes) {
  HardwareProfile p = round_profile();
  p.exchange_seconds = 0.5;
  Hand near, far;
  near.exchange(7, 800);
  far.exchange(8, 800);
  EXPECT_DOUBLE_EQ(near.run(p, {0, 8}).step_seconds, 0.5 + 800 / 400.0);
  const Simulation s = far.run(p, {0, 8});
  EXPECT_DOUBLE_EQ(s.step_seconds, 0.5 + 800 / 50.0);
  EXPECT_DOUBLE_EQ(s.of(Lane::comm), s.step_seconds);
}

TEST(Simulate, MessagesThatPassTheLinkShareIt) {
  HardwareProfile p = round_profile();
  p.network_path = MessagePath::link;  // both ways of it: 2 × rate of the 150
  Hand hand;
  hand.exchange(8, 400);
  hand.add(Lane::h2d, 300);
  // 50 of the network, counted both ways, and 50 of the copy fill the 150.
  const Simulation s = hand.run(p, {0, 8});
  EXPECT_DOUBLE_EQ(s.timeline[1].end, 6);
  EXPECT_DOUBLE_EQ(s.step_seconds, 8);
}

TEST(Simulate, CopiesTakeTimeToStart) {
  HardwareProfile p = round_profile();
  p.copy_seconds = 0.25;
  Hand hand;
  for (int k = 0; k < 4; ++k) hand.add(Lane::h2d, 100);
  const Simulation s = hand.run(p);
  EXPECT_DOUBLE_EQ(s.step_seconds, 4 * 1.25);
  EXPECT_FLOAT_EQ(hand.program().instrs[0].planned_us, 1.25e6f);
}

// What starts does not use the link yet.
TEST(Simulate, AStartSharesNothing) {
  HardwareProfile p = round_profile();
  p.copy_seconds = 1;
  Hand hand;
  hand.add(Lane::h2d, 200);  // starts until 1, moves until 3
  hand.add(Lane::d2h, 0);    // until 1
  hand.add(Lane::d2h, 100);  // starts until 2; both move at 75 a second
  const Simulation s = hand.run(p);
  EXPECT_DOUBLE_EQ(s.timeline[0].end, 2 + 100 / 75.0);
  EXPECT_DOUBLE_EQ(s.timeline[2].end, 2 + 100 / 75.0);
}

TEST(Simulate, ExposedByCause) {
  Hand hand;
  const InstrId in = hand.add(Lane::h2d, 200);        // 0 … 2
  const InstrId a = hand.compute(3, {in});            // 2 … 5
  const InstrId sum = hand.exchange(8, 100, {a});     // 5 … 7
  const InstrId b = hand.compute(1, {sum, in});       // 7 … 8
  const InstrId out = hand.add(Lane::d2h, 400, {b});  // 8 … 12
  const Simulation s = hand.run(round_profile(), {0, 8});
  EXPECT_DOUBLE_EQ(s.timeline[out].end, 12);
  EXPECT_DOUBLE_EQ(s.of(Lane::h2d), 2);
  EXPECT_DOUBLE_EQ(s.of(Lane::comm), 2);
  EXPECT_DOUBLE_EQ(s.of(Lane::d2h), 4);
  EXPECT_DOUBLE_EQ(s.of(Lane::compute), 0);
  EXPECT_DOUBLE_EQ(s.busy[0], 4);
  EXPECT_DOUBLE_EQ(copies_of(s.exposed), 6);
}

// Compute waits for an exchange that waits for a copy: each is charged its own part.
TEST(Simulate, ExposedThroughAChain) {
  Hand hand;
  const InstrId in = hand.add(Lane::h2d, 300);         // 0 … 3
  const InstrId gather = hand.exchange(8, 100, {in});  // 3 … 5
  hand.compute(1);                                     // 0 … 1
  hand.compute(1, {gather});                           // 5 … 6
  const Simulation s = hand.run(round_profile(), {0, 8});
  EXPECT_DOUBLE_EQ(s.step_seconds, 6);
  EXPECT_DOUBLE_EQ(s.of(Lane::h2d), 2);
  EXPECT_DOUBLE_EQ(s.of(Lane::comm), 2);
}

// A wait for what is issued later is for the iteration before; in the first there is none.
TEST(Simulate, WaitsReachBackOneIteration) {
  Hand hand;
  hand.program().segments[0].trip = 3;
  const InstrId c = hand.compute(1, {1});
  hand.add(Lane::h2d, 200, {c});
  // compute 0 … 1, copy 1 … 3, compute 3 … 4, copy 4 … 6, compute 6 … 7, copy 7 … 9.
  const Simulation s = hand.run(round_profile());
  ASSERT_EQ(s.timeline.size(), 6u);
  EXPECT_DOUBLE_EQ(s.timeline[4].begin, 6);
  EXPECT_DOUBLE_EQ(s.step_seconds, 9);
  EXPECT_DOUBLE_EQ(s.of(Lane::h2d), 6);
}

// Without tables, events or increments: at every moment every rate is found anew, by raising all
// flows in steps of the tightest resource; instructions are kept as one list in issue order.
class Reference {
 public:
  Reference(ProgramSet& set, const Machine& machine) : machine_(machine) {
    const Program& p = set.programs[0];
    std::vector<int> latest(p.instrs.size(), -1);
    std::array<int, kLaneCount> before;
    before.fill(-1);
    for (const Segment& segment : p.segments)
      for (int k = 0; k < segment.trip; ++k)
        for (InstrId i = segment.begin; i < segment.end; ++i) {
          Run run;
          run.lane = p.instrs[i].lane;
          const InstrCost cost = cost_of(set, p, p.instrs[i], machine);
          run.start = cost.seconds;
          for (size_t f = 0; f < 2; ++f) {
            run.kind[f] = cost.flows[f].kind;
            run.left[f] = cost.flows[f].bytes;
          }
          for (const Wait& w : p.instrs[i].waits)
            if (latest[w.on] >= 0) run.on.push_back(latest[w.on]);
          int& last = before[static_cast<size_t>(run.lane)];
          if (last >= 0) run.on.push_back(last);
          latest[i] = last = static_cast<int>(runs.size());
          runs.push_back(run);
        }
  }

  struct Run {
    Lane lane{};
    std::vector<int> on;
    double start = 0, left[2] = {0, 0}, begin = -1, end = -1;
    Traffic kind[2]{};
  };
  std::vector<Run> runs;

  double run() {
    for (double now = 0;;) {
      bool all = true, ended = false;
      for (Run& r : runs) {
        const bool ready =
            std::all_of(r.on.begin(), r.on.end(), [&](int o) { return runs[o].end >= 0; });
        if (r.begin < 0 && ready) r.begin = now;
        if (r.begin >= 0 && r.end < 0 && r.start <= 0 && r.left[0] <= 0 && r.left[1] <= 0) {
          r.end = now;
          ended = true;
        }
        all &= r.end >= 0;
      }
      if (all) return now;
      if (ended) continue;
      double step = std::numeric_limits<double>::infinity();
      std::vector<std::pair<Run*, int>> flows;
      for (Run& r : runs) {
        if (r.begin < 0 || r.end >= 0) continue;
        if (r.start > 0) step = std::min(step, r.start);
        for (int f = 0; f < 2 && r.start <= 0; ++f)
          if (r.left[f] > 0) flows.emplace_back(&r, f);
      }
      const std::vector<double> rate = rates(flows);
      for (size_t f = 0; f < flows.size(); ++f)
        step = std::min(step, flows[f].first->left[flows[f].second] / rate[f]);
      for (Run& r : runs)
        if (r.begin >= 0 && r.end < 0 && r.start > 0) r.start -= step;
      for (Run& r : runs)
        if (std::abs(r.start) < 1e-9) r.start = 0;
      for (size_t f = 0; f < flows.size(); ++f) {
        double& left = flows[f].first->left[flows[f].second];
        left -= rate[f] * step;
        if (left < 1e-7) left = 0;
      }
      now += step;
    }
  }

 private:
  std::vector<double> rates(const std::vector<std::pair<Run*, int>>& flows) const {
    std::vector<double> rate(flows.size(), 0);
    std::vector<bool> fixed(flows.size(), false);
    const auto weight = [&](const SharedResource& r, size_t f) {
      return r.of(flows[f].first->kind[flows[f].second]);
    };
    while (std::find(fixed.begin(), fixed.end(), false) != fixed.end()) {
      double rise = std::numeric_limits<double>::infinity();
      const auto room = [&](const SharedResource& r, double* growing) {
        double left = r.bytes_per_second;
        *growing = 0;
        for (size_t f = 0; f < flows.size(); ++f) {
          left -= weight(r, f) * rate[f];
          if (!fixed[f]) *growing += weight(r, f);
        }
        return left;
      };
      double growing = 0;
      for (const SharedResource& r : machine_.resources)
        if (const double left = room(r, &growing); growing > 0)
          rise = std::min(rise, left / growing);
      for (size_t f = 0; f < flows.size(); ++f)
        if (!fixed[f]) rate[f] += rise;
      for (const SharedResource& r : machine_.resources)
        if (const double left = room(r, &growing); left <= 1e-9 * r.bytes_per_second)
          for (size_t f = 0; f < flows.size(); ++f)
            if (weight(r, f) > 0) fixed[f] = true;
    }
    return rate;
  }

  const Machine& machine_;
};

TEST(Simulate, RandomProgramsAgainstTheReference) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  std::mt19937_64 rng(seed);
  const auto pick = [&](int low, int high) {
    return low + static_cast<int>(rng() % static_cast<uint64_t>(high - low + 1));
  };
  for (int trial = 0; trial < 500; ++trial) {
    HardwareProfile p = round_profile();
    p.copy_seconds = 0.1 * pick(0, 5);
    p.exchange_seconds = 0.1 * pick(0, 5);
    p.both_ways_bandwidth = pick(80, 220);
    p.host_bandwidth = pick(200, 2000);
    p.devices_per_uplink = 1 << pick(0, 3);
    p.uplink_bandwidth = pick(60, 400);
    p.network_path = static_cast<MessagePath>(pick(0, 2));
    p.intra_node_path = static_cast<MessagePath>(pick(0, 2));
    const RankPlace place{0, pick(1, 8)};
    Hand hand;
    hand.program().segments.clear();
    const int segments = pick(1, 3);
    for (int s = 0; s < segments; ++s) {
      const auto begin = static_cast<InstrId>(hand.program().instrs.size());
      hand.program().segments.push_back({"s", pick(1, 4), begin, begin});
      const int body = pick(1, 8);
      for (int k = 0; k < body; ++k) {
        std::vector<InstrId> waits;
        for (int w = pick(0, 2); w > 0; --w) waits.push_back(pick(0, begin + body - 1));
        const int64_t bytes = 4 * pick(0, 200);
        switch (pick(0, 3)) {
          case 0:
            hand.compute(pick(0, 5), waits);
            break;
          case 1:
            hand.add(Lane::h2d, bytes, waits);
            break;
          case 2:
            hand.add(Lane::d2h, bytes, waits);
            break;
          default:
            hand.exchange(pick(1, 12), bytes, waits);
        }
      }
    }
    for (Instr& i : hand.program().instrs)  // waits are for other lanes
      std::erase_if(i.waits,
                    [&](const Wait& w) { return hand.program().instrs[w.on].lane == i.lane; });
    const Simulation s = hand.run(p, place);
    const Machine machine = machine_of(p, place, false);
    Reference reference(hand.set, machine);
    const double expected = reference.run();
    ASSERT_NEAR(s.step_seconds, expected, 1e-6 * (1 + expected)) << "trial " << trial;
    ASSERT_EQ(s.timeline.size(), reference.runs.size());
    double idle = 0;
    for (const double seconds : s.exposed) idle += seconds;
    ASSERT_NEAR(s.busy[0] + idle, s.step_seconds, 1e-9 * (1 + expected));
    ASSERT_EQ(s.of(Lane::compute), 0);
    for (size_t i = 0; i < s.timeline.size(); ++i) {
      ASSERT_NEAR(s.timeline[i].begin, reference.runs[i].begin, 1e-6 * (1 + expected));
      ASSERT_NEAR(s.timeline[i].end, reference.runs[i].end, 1e-6 * (1 + expected));
      // No instruction is faster than alone, as the bound prices it.
      const InstrCost cost =
          cost_of(hand.set, hand.program(), hand.program().instrs[s.timeline[i].instr], machine);
      ASSERT_GE(s.timeline[i].end - s.timeline[i].begin,
                seconds_alone(cost, machine) * (1 - 1e-9) - 1e-9);
    }
  }
}

}  // namespace
}  // namespace spillway
