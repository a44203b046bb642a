#include "plan/simulate.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace spillway {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int32_t kNoInstance = -1;

// Rates by the number of flows of each kind, each set of flows computed once.
class RateTable {
 public:
  explicit RateTable(const std::vector<SharedResource>& resources)
      : resources_(resources), known_(1u << (kBits * kTraffics)), rates_(known_.size()) {}

  const ByTraffic& of(const std::array<uint8_t, kTraffics>& flows) {
    size_t index = 0;
    for (const uint8_t count : flows) index = index << kBits | count;
    if (!known_[index]) {
      rates_[index] = max_min_rates(resources_, flows);
      known_[index] = true;
    }
    return rates_[index];
  }

 private:
  static constexpr int kBits = 2;  // no kind has flows of more than three lanes
  const std::vector<SharedResource>& resources_;
  std::vector<bool> known_;
  std::vector<ByTraffic> rates_;
};

// An instruction of one lane, with its waits as [first_wait, last_wait) of Running::waits_.
struct Item {
  InstrId instr = 0;
  int32_t first_wait = 0, last_wait = 0;
  InstrCost cost;
};

struct MovingFlow {
  Traffic kind = Traffic::h2d;
  double rate = 0, end = kNever;  // at the present rates; kNever: it has arrived
};

enum class Phase : uint8_t { waiting, starting, moving, done };

struct LaneState {
  Phase phase = Phase::waiting;
  size_t segment = 0, item = 0;
  int32_t iteration = 0, wait = 0;  // the next wait to look at
  int32_t instance = kNoInstance;   // of the instruction that is next or under way
  int32_t last = kNoInstance;       // instance before that
  double start_ends = 0;
  std::array<MovingFlow, 2> flows{};
};

// One execution of an instruction; what ended when it began, and had to end first.
struct Instance {
  double begin = 0, end = -1;  // -1: not yet
  int32_t after = kNoInstance;
  Lane lane = Lane::compute;
};

class Running {
 public:
  Running(ProgramSet& set, int program, const Machine& machine)
      : program_(set.programs[program]), rates_(machine.resources) {
    const size_t segments = program_.segments.size();
    segment_of_.resize(program_.instrs.size());
    items_.resize(segments);
    int64_t instances = 0;
    for (size_t s = 0; s < segments; ++s) {
      const Segment& segment = program_.segments[s];
      first_instance_.push_back(static_cast<int32_t>(instances));
      instances += int64_t{segment.trip} * (segment.end - segment.begin);
      for (InstrId i = segment.begin; i < segment.end; ++i) {
        Instr& instr = program_.instrs[i];
        segment_of_[i] = static_cast<int32_t>(s);
        Item item{i, static_cast<int32_t>(waits_.size()), 0,
                  cost_of(set, program_, instr, machine)};
        for (const Wait& w : instr.waits) waits_.push_back(w.on);
        item.last_wait = static_cast<int32_t>(waits_.size());
        instr.planned_us = static_cast<float>(seconds_alone(item.cost, machine) * 1e6);
        items_[s][static_cast<size_t>(instr.lane)].push_back(item);
      }
    }
    if (instances > std::numeric_limits<int32_t>::max())
      internal_error("{} has {} instructions a run", program_.name, instances);
    instances_.resize(static_cast<size_t>(instances));
  }

  Simulation run(bool keep_timeline) {
    for (size_t lane = 0; lane < kLaneCount; ++lane) enter_segment(lane);
    start_what_can();
    for (;;) {
      const double next = next_event();
      if (next == kNever) break;
      now_ = next;
      for (size_t lane = 0; lane < kLaneCount; ++lane) advance(lane);
      start_what_can();
      if (flows_changed_) share_again();
    }
    return result(keep_timeline);
  }

 private:
  const std::vector<Item>& items(size_t lane) const { return items_[lanes_[lane].segment][lane]; }
  const Item& item(size_t lane) const { return items(lane)[lanes_[lane].item]; }

  // At the lane's first instruction from its segment on.
  void enter_segment(size_t lane) {
    LaneState& state = lanes_[lane];
    while (state.segment < items_.size() &&
           (items(lane).empty() || program_.segments[state.segment].trip < 1))
      ++state.segment;
    if (state.segment == items_.size())
      state.phase = Phase::done;
    else
      expect(lane);
  }

  void expect(size_t lane) {
    LaneState& state = lanes_[lane];
    state.phase = Phase::waiting;
    state.wait = item(lane).first_wait;
    state.instance = instance_of(state.segment, state.iteration, item(lane).instr);
  }

  int32_t instance_of(size_t segment, int32_t iteration, InstrId instr) const {
    const Segment& s = program_.segments[segment];
    return first_instance_[segment] + iteration * (s.end - s.begin) + instr - s.begin;
  }

  // The most recently issued instance of `on`, seen from the lane's next instruction.
  int32_t awaited(const LaneState& state, InstrId instr, InstrId on) const {
    const auto segment = static_cast<size_t>(segment_of_[on]);
    if (segment > state.segment) return kNoInstance;
    if (segment < state.segment) {
      const int32_t trip = program_.segments[segment].trip;
      return trip < 1 ? kNoInstance : instance_of(segment, trip - 1, on);
    }
    const int32_t iteration = on < instr ? state.iteration : state.iteration - 1;
    return iteration < 0 ? kNoInstance : instance_of(segment, iteration, on);
  }

  void start_what_can() {
    for (size_t lane = 0; lane < kLaneCount; ++lane)
      if (lanes_[lane].phase == Phase::waiting) try_start(lane);
  }

  void try_start(size_t lane) {
    LaneState& state = lanes_[lane];
    const Item& next = item(lane);
    // What kept it waiting until now: the lane itself, or the wait that was met last.
    int32_t after = state.last;
    if (after != kNoInstance && instances_[after].end < now_) after = kNoInstance;
    for (; state.wait < next.last_wait; ++state.wait) {
      const int32_t on = awaited(state, next.instr, waits_[state.wait]);
      if (on == kNoInstance) continue;
      if (instances_[on].end < 0) return;
      if (after == kNoInstance && instances_[on].end == now_) after = on;
    }
    Instance& instance = instances_[state.instance];
    instance.begin = now_;
    instance.after = after;
    instance.lane = static_cast<Lane>(lane);
    state.phase = Phase::starting;
    state.start_ends = now_ + next.cost.seconds;
    if (static_cast<Lane>(lane) == Lane::compute) expose(compute_ended_, now_, after);
  }

  double next_event() const {
    double next = kNever;
    for (const LaneState& state : lanes_) {
      if (state.phase == Phase::starting) next = std::min(next, state.start_ends);
      if (state.phase == Phase::moving)
        for (const MovingFlow& flow : state.flows) next = std::min(next, flow.end);
    }
    return next;
  }

  void advance(size_t lane) {
    LaneState& state = lanes_[lane];
    if (state.phase == Phase::starting && state.start_ends <= now_) {
      state.phase = Phase::moving;
      const InstrCost& cost = item(lane).cost;
      for (size_t f = 0; f < cost.flows.size(); ++f) {
        if (!(cost.flows[f].bytes > 0)) continue;
        // At an unknown rate until share_again.
        state.flows[f] = {cost.flows[f].kind, 0, now_ + cost.flows[f].bytes};
        ++flowing_[static_cast<size_t>(cost.flows[f].kind)];
        flows_changed_ = true;
      }
    } else if (state.phase == Phase::moving) {
      for (MovingFlow& flow : state.flows)
        if (flow.end <= now_) {
          flow.end = kNever;
          --flowing_[static_cast<size_t>(flow.kind)];
          flows_changed_ = true;
        }
    }
    if (state.phase == Phase::moving &&
        std::all_of(state.flows.begin(), state.flows.end(),
                    [](const MovingFlow& flow) { return flow.end == kNever; }))
      end_instruction(lane);
  }

  void end_instruction(size_t lane) {
    LaneState& state = lanes_[lane];
    Instance& instance = instances_[state.instance];
    instance.end = now_;
    busy_[lane] += now_ - instance.begin;
    if (static_cast<Lane>(lane) == Lane::compute) compute_ended_ = now_;
    last_ = state.last = state.instance;
    if (++state.item < items(lane).size()) return expect(lane);
    state.item = 0;
    if (++state.iteration < program_.segments[state.segment].trip) return expect(lane);
    state.iteration = 0;
    ++state.segment;
    enter_segment(lane);
  }

  // Times of arrival at the new rates.
  void share_again() {
    flows_changed_ = false;
    const ByTraffic& rates = rates_.of(flowing_);
    for (LaneState& state : lanes_) {
      if (state.phase != Phase::moving) continue;
      for (MovingFlow& flow : state.flows) {
        const double rate = rates[static_cast<size_t>(flow.kind)];
        if (flow.end == kNever || flow.rate == rate) continue;
        const double bytes = (flow.end - now_) * (flow.rate > 0 ? flow.rate : 1);
        flow.rate = rate;
        flow.end = now_ + bytes / rate;
      }
    }
  }

  // Charges [from, to), in which the compute lane was idle until instance `on` ended.
  void expose(double from, double to, int32_t on) {
    while (to > from) {
      if (on == kNoInstance) internal_error("{}: compute waits for nothing", program_.name);
      const Instance& instance = instances_[on];
      const double begin = std::max(from, instance.begin);
      exposed_[static_cast<size_t>(instance.lane)] += to - begin;
      to = begin;
      on = instance.after;
    }
  }

  Simulation result(bool keep_timeline) {
    for (const LaneState& state : lanes_)
      if (state.phase != Phase::done)
        internal_error(
            "{}: {} waits for what never comes", program_.name,
            program_.instrs[item(static_cast<size_t>(&state - lanes_.data())).instr].name);
    Simulation simulation;
    simulation.step_seconds = now_;
    expose(compute_ended_, now_, last_);
    simulation.busy = busy_;
    simulation.exposed = exposed_;
    if (!keep_timeline) return simulation;
    size_t at = 0;
    for (const Segment& segment : program_.segments)
      for (int32_t iteration = 0; iteration < segment.trip; ++iteration)
        for (InstrId i = segment.begin; i < segment.end; ++i, ++at)
          simulation.timeline.push_back(
              {i, instances_[at].lane, instances_[at].begin, instances_[at].end});
    return simulation;
  }

  Program& program_;
  RateTable rates_;
  std::vector<std::array<std::vector<Item>, kLaneCount>> items_;  // by segment and lane
  std::vector<InstrId> waits_;
  std::vector<int32_t> segment_of_;      // by instruction
  std::vector<int32_t> first_instance_;  // by segment
  std::vector<Instance> instances_;      // in issue order
  std::array<LaneState, kLaneCount> lanes_{};
  std::array<uint8_t, kTraffics> flowing_{};
  bool flows_changed_ = false;
  double now_ = 0, compute_ended_ = 0;
  int32_t last_ = kNoInstance;  // that ended
  ByLane busy_{}, exposed_{};
};

}  // namespace

Simulation simulate(ProgramSet& set, int program, const Machine& machine, bool keep_timeline) {
  return Running(set, program, machine).run(keep_timeline);
}

}  // namespace spillway
