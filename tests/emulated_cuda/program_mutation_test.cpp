// Is the checker sharp? Programs and the runtime are spoiled in one place each, without rebuilding,
// and run on the emulated device until a seed of its scheduler finds out; the report must name an
// instruction that has to do with it. Unspoiled programs must run without a report.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string_view>

#include "tests/emulated_cuda/forked_ranks.h"
#include "tests/emulated_cuda/program_run.h"

namespace spillway {
namespace {

constexpr int kSeeds = 20;
bool long_campaign() {
  const char* value = std::getenv("SPILLWAY_LONG");
  return value != nullptr && std::string_view(value) == "1";
}

// What one spoiled run is: a plan to change, hooks to set, names of instructions to expect.
struct Victim {
  Plan& plan;
  RunHooks& hooks;
  std::mt19937_64 random;
  int rank;
  std::vector<std::string>& names;

  Program& train() { return plan.lowered.set.programs[0]; }
  const std::string& name(InstrId id) { return train().instrs[id].name; }
  void expect(InstrId id) { names.push_back(name(id)); }

  // Any of the instructions that `suits` holds for.
  template <class Suits>
  InstrId any(Suits&& suits) {
    std::vector<InstrId> found;
    for (InstrId id = 0; id < static_cast<InstrId>(train().instrs.size()); ++id)
      if (suits(train().instrs[id])) found.push_back(id);
    if (found.empty()) internal_error("no instruction suits this mutation");
    return found[random() % found.size()];
  }
};

bool is(const Instr& i, InstrKind kind, Lane lane) { return i.kind == kind && i.lane == lane; }
bool streams(const Instr& i, Lane lane) {  // a copy of a ring's slot, not of batch or scalars
  return is(i, InstrKind::copy, lane) && i.name.find("blk.") != std::string::npos;
}

// ---- programs -----------------------------------------------------------------------------------

// One of the waits of `lane` for `on` goes.
auto without_wait(Lane lane, Lane on) {
  return [=](Victim& v) {
    const auto waits_on = [&](const Wait& w) { return v.train().instrs[w.on].lane == on; };
    const InstrId id = v.any([&](const Instr& i) {
      return i.lane == lane && std::any_of(i.waits.begin(), i.waits.end(), waits_on);
    });
    Instr& instr = v.train().instrs[id];
    v.expect(id);
    for (const Wait& w : instr.waits)
      if (waits_on(w)) v.expect(w.on);
    std::erase_if(instr.waits, waits_on);
  };
}

// A wait names an instruction that its lane runs earlier.
void waits_too_early(Victim& v) {
  const InstrId id = v.any([](const Instr& i) { return i.waits.size() == 1; });
  Wait& wait = v.train().instrs[id].waits[0];
  const Lane lane = v.train().instrs[wait.on].lane;
  v.expect(id);
  v.expect(wait.on);
  for (InstrId before = wait.on - 1; before >= 0; --before)
    if (v.train().instrs[before].lane == lane) {
      wait.on = before;
      return;
    }
  v.train().instrs[id].waits.clear();
}

// Some of the lanes are not waited for at a program's entry. Whatever comes later on a lane that
// should have waited may be what is found: it was covered by that wait.
void forget_at_the_boundary(Victim& v, uint8_t lanes) {
  v.hooks.back_to_back = true;
  for (Program& program : v.plan.lowered.set.programs) {
    std::set<Lane> spoiled;
    for (Instr& i : program.instrs) {
      if (i.entry_waits & lanes) spoiled.insert(i.lane);
      i.entry_waits &= static_cast<uint8_t>(~lanes);
    }
    for (const Instr& i : program.instrs)
      if (spoiled.contains(i.lane)) v.names.push_back(i.name);
  }
}

void forgets_the_boundary(Victim& v) { forget_at_the_boundary(v, 0xff); }

void forgets_one_lane_at_the_boundary(Victim& v) {
  forget_at_the_boundary(v, 1 << static_cast<int>(Lane::d2h));
}

// An op runs on another lane's stream, where nobody waits for it.
void op_on_the_wrong_lane(Victim& v) {
  const InstrId id = v.any([](const Instr& i) {
    return is(i, InstrKind::op, Lane::compute) && i.name.find("blk.") != std::string::npos;
  });
  v.expect(id);
  if (id > 0) v.expect(id - 1);
  for (const ProgramOperand& o : v.train().instrs[id].out)
    for (const Instr& other : v.train().instrs)
      for (const Access& a : other.access)
        if (a.buffer == o.buffer) v.names.push_back(other.name);
  v.train().instrs[id].lane = Lane::comm;
}

void copy_on_the_wrong_lane(Victim& v) {
  const InstrId id = v.any([](const Instr& i) { return streams(i, Lane::h2d); });
  v.expect(id);
  v.train().instrs[id].lane = Lane::d2h;
}

void fetch_on_the_communication_lane(Victim& v) {
  const InstrId id = v.any([](const Instr& i) { return streams(i, Lane::h2d); });
  v.expect(id);
  const BufferId slot = v.train().instrs[id].out[0].buffer;
  for (const Instr& other : v.train().instrs)
    for (const Access& a : other.access)
      if (a.buffer == slot) v.names.push_back(other.name);
  v.train().instrs[id].lane = Lane::comm;
}

void all_users_of(Victim& v, BufferId buffer) {
  for (const Program& program : v.plan.lowered.set.programs)
    for (const Instr& i : program.instrs)
      for (const Access& a : i.access)
        if (a.buffer == buffer) v.names.push_back(i.name);
}

BufferId any_ring(Victim& v) {
  std::vector<BufferId> rings;
  const auto& buffers = v.plan.lowered.set.buffers;
  for (BufferId b = 0; b < static_cast<BufferId>(buffers.size()); ++b)
    if (buffers[b].versions > 1 && buffers[b].tier == Tier::device &&
        buffers[b].name.starts_with("ring"))
      rings.push_back(b);
  return rings[v.random() % rings.size()];
}

// The program was synchronised for one slot more.
void a_slot_too_few(Victim& v) {
  const BufferId ring = any_ring(v);
  all_users_of(v, ring);
  --v.plan.lowered.set.buffers[ring].versions;
}

// Two rings share their bytes.
void two_rings_in_one_place(Victim& v) {
  BufferId a = any_ring(v), b = a;
  while (b == a) b = any_ring(v);
  const auto bytes = [&](BufferId ring) {
    return v.plan.layout.version_stride[ring] * v.plan.lowered.set.buffers[ring].versions;
  };
  if (bytes(a) < bytes(b)) std::swap(a, b);
  all_users_of(v, a);
  all_users_of(v, b);
  v.plan.layout.offset[b] = v.plan.layout.offset[a];
}

Access& access_of(Instr& i, const ProgramOperand& o, bool write) {
  for (Access& a : i.access)
    if (a.buffer == o.buffer && a.offset == o.offset && a.write == write) return a;
  internal_error("{} does not declare its operand", i.name);
}

void fetch_into_the_wrong_slot(Victim& v) {
  const InstrId id = v.any([&](const Instr& i) {
    return streams(i, Lane::h2d) && v.plan.lowered.set.buffers[i.out[0].buffer].versions > 1;
  });
  Instr& i = v.train().instrs[id];
  all_users_of(v, i.out[0].buffer);
  ++access_of(i, i.out[0], true).version.base;
  ++i.out[0].version.base;
}

// Into the bytes beside, in both memories.
void a_copy_too_long(Victim& v) {
  const InstrId id = v.any([&](const Instr& i) {
    return streams(i, Lane::h2d) && i.out[0].offset + i.out[0].bytes() + 256 <=
                                        v.plan.lowered.set.buffers[i.out[0].buffer].bytes;
  });
  Instr& i = v.train().instrs[id];
  all_users_of(v, i.out[0].buffer);
  for (auto* o : {&i.in[0], &i.out[0]}) {
    Access& a = access_of(i, *o, o == &i.out[0]);
    o->dims = Dims(o->dims.count() + 256 / size_of(o->dtype));
    a.bytes += 256;
    // The host's buffer is as large as its tensor; it says it is larger.
    Buffer& b = v.plan.lowered.set.buffers[o->buffer];
    b.bytes = std::max(b.bytes, a.offset + a.bytes);
  }
}

void a_copy_too_short(Victim& v) {
  const InstrId id = v.any([](const Instr& i) {
    return streams(i, Lane::h2d) && i.out[0].dims.count() > 8 &&
           i.name.find("moment") == std::string::npos;
  });
  Instr& i = v.train().instrs[id];
  all_users_of(v, i.out[0].buffer);
  for (ProgramOperand* o : {&i.in[0], &i.out[0]}) o->dims = Dims(o->dims.count() - 8);
}

// The op comes before what it needs, which keeps its waits.
void an_op_before_its_fetch(Victim& v) {
  auto& instrs = v.train().instrs;
  const auto fetch_of = [&](const Instr& i) -> InstrId {
    for (const Wait& w : i.waits)
      if (streams(instrs[w.on], Lane::h2d)) return w.on;
    return -1;
  };
  const InstrId id = v.any(
      [&](const Instr& i) { return is(i, InstrKind::op, Lane::compute) && fetch_of(i) >= 0; });
  const InstrId fetch = fetch_of(instrs[id]);
  v.expect(id);
  all_users_of(v, instrs[fetch].out[0].buffer);
  instrs[id].waits.clear();
  std::swap(instrs[id], instrs[fetch]);
}

// An operand reaches beyond its tensor, undeclared bytes included in the declaration.
void an_op_that_writes_too_much(Victim& v) {
  const InstrId id = v.any([&](const Instr& i) {
    return is(i, InstrKind::op, Lane::compute) && !i.out.empty() &&
           v.plan.lowered.set.buffers[i.out[0].buffer].name.starts_with("ring");
  });
  Instr& i = v.train().instrs[id];
  ProgramOperand& o = i.out[0];
  Buffer& b = v.plan.lowered.set.buffers[o.buffer];
  const int64_t more = v.plan.layout.version_stride[o.buffer];
  v.names.clear();
  v.expect(id);
  all_users_of(v, o.buffer);
  o.dims = Dims(o.dims.count() + more / size_of(o.dtype));
  i.access.push_back({o.buffer, o.version, o.offset, o.bytes(), true});
  b.bytes = std::max(b.bytes, o.offset + o.bytes());
}

// ---- exchanges ----------------------------------------------------------------------------------

bool exchanges(const Instr& i) { return is(i, InstrKind::exchange, Lane::comm); }

void collectives_swapped_on_one_rank(Victim& v) {
  auto& instrs = v.train().instrs;
  // Two exchanges of different sizes that follow each other on their lane.
  std::vector<std::pair<InstrId, InstrId>> pairs;
  InstrId last = -1;
  for (InstrId id = 0; id < static_cast<InstrId>(instrs.size()); ++id) {
    if (!exchanges(instrs[id])) continue;
    const auto bytes = [&](InstrId x) {
      return instrs[x].in.empty() ? 0 : instrs[x].in[0].bytes();
    };
    if (last >= 0 && bytes(last) != bytes(id)) pairs.push_back({last, id});
    last = id;
  }
  if (pairs.empty()) internal_error("no two exchanges of different sizes");
  const auto [a, b] = pairs[v.random() % pairs.size()];
  v.expect(a);
  v.expect(b);
  if (v.rank != 1) return;
  std::swap(instrs[a].transfers, instrs[b].transfers);
  std::swap(instrs[a].in, instrs[b].in);
  std::swap(instrs[a].out, instrs[b].out);
  std::swap(instrs[a].access, instrs[b].access);
}

void a_collective_left_out_on_one_rank(Victim& v) {
  const InstrId id = v.any([](const Instr& i) { return exchanges(i) && !i.transfers.empty(); });
  for (const Instr& i : v.train().instrs)
    if (exchanges(i)) v.names.push_back(i.name);
  if (v.rank == 1) v.train().instrs[id].transfers.clear();
}

void a_collective_of_the_wrong_size(Victim& v) {
  const InstrId id = v.any(
      [](const Instr& i) { return exchanges(i) && !i.in.empty() && i.in[0].dims.count() > 8; });
  v.expect(id);
  if (v.rank != 0) return;
  for (ProgramOperand& o : v.train().instrs[id].in) o.dims = Dims(o.dims.count() - 4);
}

// ---- the runtime --------------------------------------------------------------------------------

template <class D>
auto wrapped() {
  return [](Victim& v) {
    const uint64_t draw = v.random();
    for (const Program& program : v.plan.lowered.set.programs)
      for (const Instr& i : program.instrs) v.names.push_back(i.name);
    v.hooks.wrap = [draw](Device& device) { return std::make_unique<D>(device, draw); };
  };
}

class Spoiled : public ForwardingDevice {
 public:
  Spoiled(Device& to, uint64_t draw) : ForwardingDevice(to), draw_(draw) {}

 protected:
  bool now() { return ++calls_ % 7 == draw_ % 7; }
  uint64_t draw_, calls_ = 0;
};

struct DropsWaits : Spoiled {
  using Spoiled::Spoiled;
  void wait(Lane l, Lane on, Ticket t) override {
    if (!now()) to_.wait(l, on, t);
  }
};

// As if an event were reused before its waiter came.
struct WaitsForTheTicketBefore : Spoiled {
  using Spoiled::Spoiled;
  void wait(Lane l, Lane on, Ticket t) override {
    if (t > 1) to_.wait(l, on, t - 1);
  }
};

// As if merging had carried the second half of a copy to another stream.
struct SplitsCopiesOverLanes : Spoiled {
  using Spoiled::Spoiled;
  Ticket copy(Lane l, void* to, const void* from, int64_t n, const Instr* i) override {
    if (l != Lane::h2d || n < 512 || !now()) return to_.copy(l, to, from, n, i);
    const int64_t half = n / 2 / 256 * 256;
    to_.copy(Lane::comm, static_cast<char*>(to) + half, static_cast<const char*>(from) + half,
             n - half, i);
    return to_.copy(l, to, from, half, i);
  }
};

struct LaunchesAnywhere : Spoiled {
  using Spoiled::Spoiled;
  Ticket launch(Lane l, OpKind op, const KernelArgs& a, const Instr* i) override {
    if (now()) to_.launch(Lane::comm, op, a, i);
    return to_.launch(l, op, a, i);
  }
};

struct ReservesTooLittle : Spoiled {
  using Spoiled::Spoiled;
  void* reserve(Tier t, int64_t n) override {
    return to_.reserve(t, t == Tier::device ? n - 512 : n);
  }
};

struct NeverWaitsForTheWayBack : Spoiled {
  using Spoiled::Spoiled;
  void synchronise_all() override {
    for (const Lane l : {Lane::compute, Lane::h2d, Lane::comm}) to_.synchronise(l, ~Ticket{0});
  }
};

// As if what was recorded before some op could no longer be waited for after it.
struct LosesEvents : Spoiled {
  using Spoiled::Spoiled;
  Ticket last[kLaneCount] = {}, start[kLaneCount] = {};
  void wait(Lane l, Lane on, Ticket t) override {
    if (t > start[static_cast<int>(on)]) to_.wait(l, on, t);
  }
  Ticket launch(Lane l, OpKind op, const KernelArgs& a, const Instr* i) override {
    if (now()) std::copy(std::begin(last), std::end(last), std::begin(start));
    return last[static_cast<int>(l)] = to_.launch(l, op, a, i);
  }
  Ticket copy(Lane l, void* to, const void* from, int64_t n, const Instr* i) override {
    return last[static_cast<int>(l)] = to_.copy(l, to, from, n, i);
  }
};

// The host fills the next batch while this one is still on its way.
void a_pinned_buffer_reused_early(Victim& v) {
  for (const Instr& i : v.train().instrs)
    if (is(i, InstrKind::copy, Lane::h2d)) v.names.push_back(i.name);
  v.hooks.between = [](Executor& executor, const Plan& plan) {
    for (const auto& [name, buffer] : plan.lowered.io) {
      if (!name.starts_with("train.tok") && name != "train.scalars") continue;
      for (int32_t version = 0; version < plan.lowered.set.buffers[buffer].versions; ++version) {
        volatile char* at = static_cast<char*>(executor.address(buffer, version));
        for (int64_t b = 0; b < plan.lowered.set.buffers[buffer].bytes; ++b) at[b] = at[b] + 1;
      }
    }
  };
}

// … and reads what has not arrived.
void the_host_reads_early(Victim& v) {
  v.names.push_back("d2h");
  v.hooks.between = [](Executor& executor, const Plan& plan) {
    for (const char* name : {"train.scalars.out", "evaluate.losses"}) {
      volatile char* at = static_cast<char*>(executor.address(plan.lowered.io.at(name)));
      static volatile char sum;
      sum = static_cast<char>(sum + at[0]);
    }
  };
}

struct Mutation {
  const char* name;
  int ranks;
  std::function<void(Victim&)> apply;
};

const std::vector<Mutation>& mutations() {
  static const std::vector<Mutation> all = {
      {"compute does not wait for h2d", 1, without_wait(Lane::compute, Lane::h2d)},
      {"compute does not wait for d2h", 1, without_wait(Lane::compute, Lane::d2h)},
      {"h2d does not wait for compute", 1, without_wait(Lane::h2d, Lane::compute)},
      {"h2d does not wait for d2h", 1, without_wait(Lane::h2d, Lane::d2h)},
      {"d2h does not wait for compute", 1, without_wait(Lane::d2h, Lane::compute)},
      {"comm does not wait for compute", 2, without_wait(Lane::comm, Lane::compute)},
      {"compute does not wait for comm", 2, without_wait(Lane::compute, Lane::comm)},
      {"a wait for the instruction before", 1, waits_too_early},
      {"no waits at a program's entry", 1, forgets_the_boundary},
      {"no wait for the way back at a program's entry", 1, forgets_one_lane_at_the_boundary},
      {"an op on the wrong lane", 1, op_on_the_wrong_lane},
      {"a fetch on the lane back", 1, copy_on_the_wrong_lane},
      {"a fetch on the communication lane", 1, fetch_on_the_communication_lane},
      {"a slot too few", 1, a_slot_too_few},
      {"two rings in one place", 1, two_rings_in_one_place},
      {"a fetch into the wrong slot", 1, fetch_into_the_wrong_slot},
      {"a copy too long", 1, a_copy_too_long},
      {"a copy too short", 1, a_copy_too_short},
      {"an op before its fetch", 1, an_op_before_its_fetch},
      {"an op that writes too much", 1, an_op_that_writes_too_much},
      {"collectives swapped on one rank", 2, collectives_swapped_on_one_rank},
      {"a collective left out on one rank", 2, a_collective_left_out_on_one_rank},
      {"a collective of the wrong size", 2, a_collective_of_the_wrong_size},
      {"the runtime drops waits", 1, wrapped<DropsWaits>()},
      {"the runtime waits for the ticket before", 1, wrapped<WaitsForTheTicketBefore>()},
      {"the runtime splits copies over lanes", 1, wrapped<SplitsCopiesOverLanes>()},
      {"the runtime launches twice", 1, wrapped<LaunchesAnywhere>()},
      {"the arena is too small", 1, wrapped<ReservesTooLittle>()},
      {"the host never waits for the way back", 1, wrapped<NeverWaitsForTheWayBack>()},
      {"events are lost in the middle of a step", 1, wrapped<LosesEvents>()},
      {"a pinned buffer is reused early", 1, a_pinned_buffer_reused_early},
      {"the host reads early", 1, the_host_reads_early},
  };
  return all;
}

// Plans are made once, before anything is forked.
const ProgramSource& source(int rank, int ranks) {
  static std::map<std::pair<int, int>, std::unique_ptr<ProgramSource>> made;
  auto& plan = made[{rank, ranks}];
  if (!plan) plan = std::make_unique<ProgramSource>(rank, ranks, 2);
  return *plan;
}

ForkedOutcome run(int ranks, uint64_t seed, const std::function<void(Victim&)>& spoil,
                  std::vector<std::string>& names) {
  std::vector<Plan> plans;
  std::vector<RunHooks> hooks(static_cast<size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    plans.push_back(source(r, ranks).plan);
    hooks[r].back_to_back = seed % 2 == 0;
    hooks[r].options.events = 8;  // of few, so that they are reused all the time
    hooks[r].options.timed_entries = 4;
    hooks[r].options.pinned.chunk_bytes = 2 << 20;
    Victim victim{plans[r], hooks[r], std::mt19937_64(seed), r, names};
    if (spoil) spoil(victim);
  }
  return run_forked(ranks, seed, 5, [&](int rank, Communicator& communicator) {
    run_plan(plans[rank], communicator, hooks[rank]);
  });
}

class ProgramMutation : public testing::TestWithParam<size_t> {};

TEST_P(ProgramMutation, IsFound) {
  const Mutation& mutation = mutations()[GetParam()];
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    std::vector<std::string> names;
    const ForkedOutcome outcome = run(mutation.ranks, seed, mutation.apply, names);
    if (outcome.clean()) continue;
    const bool named = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return outcome.said.find(name) != std::string::npos;
    });
    EXPECT_TRUE(named) << mutation.name << ", seed " << seed << ":\n" << outcome.said;
    std::printf("%s: seed %lu: %s\n", mutation.name, seed,
                outcome.said.substr(0, outcome.said.find('\n')).c_str());
    return;
  }
  FAIL() << mutation.name << ": not found in " << kSeeds << " seeds";
}

INSTANTIATE_TEST_SUITE_P(All, ProgramMutation, testing::Range<size_t>(0, mutations().size()));

TEST(Program, RunsWithoutAReport) {
  const uint64_t seeds = long_campaign() ? 200 : kSeeds;
  for (const int ranks : {1, 2})
    for (uint64_t seed = 1; seed <= seeds; ++seed) {
      std::vector<std::string> names;
      const ForkedOutcome outcome = run(ranks, seed, {}, names);
      ASSERT_TRUE(outcome.clean())
          << ranks << " ranks, seed " << seed << ", exit code " << outcome.codes[0] << ":\n"
          << outcome.said;
    }
}

// Few events or many, merged copies or none, all times taken, freed bytes poisoned.
TEST(Program, RunsWithoutAReportInEveryMode) {
  struct Timed : ForwardingDevice {
    explicit Timed(Device& to) : ForwardingDevice(to) {
      to.record_times([](void*, Lane, const Instr*, const LaneTimes&) {}, nullptr);
    }
  };
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    RunHooks hooks;
    hooks.poison = seed % 2 == 0;
    hooks.back_to_back = seed % 3 == 1;
    hooks.options.events = seed % 3 == 0 ? 2 : 512;
    hooks.options.timed_entries = 3;
    hooks.options.merge_below = seed % 4 < 2 ? 0 : int64_t{1} << 30;
    if (seed > 4) hooks.wrap = [](Device& d) { return std::make_unique<Timed>(d); };
    const ForkedOutcome outcome = run_forked(1, seed, 5, [&](int, Communicator& communicator) {
      run_plan(source(0, 1).plan, communicator, hooks);
    });
    ASSERT_TRUE(outcome.clean()) << "seed " << seed << ":\n" << outcome.said;
  }
}

}  // namespace
}  // namespace spillway
