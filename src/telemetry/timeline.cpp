#include "telemetry/timeline.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

namespace spillway {
namespace {

constexpr const char* kLaneNames[kLaneCount] = {"compute",       "host to device", "device to host",
                                                "communication", "host",           "files"};

void add(std::atomic<double>& sum, double value) {
  double old = sum.load(std::memory_order_relaxed);
  while (!sum.compare_exchange_weak(old, old + value, std::memory_order_relaxed)) {
  }
}

bool copies(Lane lane) { return lane == Lane::h2d || lane == Lane::d2h; }

}  // namespace

const char* name_of(Lane lane) { return kLaneNames[static_cast<size_t>(lane)]; }

std::string chrome_trace(const std::vector<TraceEvent>& planned,
                         const std::vector<TraceEvent>& measured,
                         const std::vector<TraceCounter>& memory) {
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  for (int process = 0; process < 2; ++process) {
    events.push_back({{"ph", "M"},
                      {"pid", process},
                      {"name", "process_name"},
                      {"args", {{"name", process == 0 ? "planned" : "measured"}}}});
    for (int lane = 0; lane < kDeviceLaneCount; ++lane)
      events.push_back({{"ph", "M"},
                        {"pid", process},
                        {"tid", lane},
                        {"name", "thread_name"},
                        {"args", {{"name", kLaneNames[lane]}}}});
    for (const TraceEvent& e : process == 0 ? planned : measured)
      events.push_back({{"ph", "X"},
                        {"pid", process},
                        {"tid", static_cast<int>(e.lane)},
                        {"name", e.name},
                        {"ts", e.begin * 1e6},
                        {"dur", (e.end - e.begin) * 1e6}});
  }
  for (const TraceCounter& c : memory)
    events.push_back(
        {{"ph", "C"}, {"pid", 0}, {"name", c.name}, {"ts", c.seconds * 1e6}, {"args", c.values}});
  return nlohmann::ordered_json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump();
}

LaneRecorder::LaneRecorder(const Program& program)
    : program_(program), waits_for_copy_(program.instrs.size(), 0) {
  for (size_t i = 0; i < program.instrs.size(); ++i)
    for (const Wait& w : program.instrs[i].waits)
      if (copies(program.instrs[w.on].lane)) waits_for_copy_[i] = 1;
}

void LaneRecorder::sink(void* context, Lane lane, const Instr* instr, const LaneTimes& times) {
  LaneRecorder& self = *static_cast<LaneRecorder*>(context);
  add(self.busy_[static_cast<int>(lane)], times.end - times.begin);
  // Instructions of other programs lie outside this one's array.
  const std::less<const Instr*> before;
  const Instr* first = self.program_.instrs.data();
  if (lane == Lane::compute && instr != nullptr && !before(instr, first) &&
      before(instr, first + self.program_.instrs.size()) &&
      self.waits_for_copy_[static_cast<size_t>(instr - first)] != 0)
    add(self.exposed_, times.waited);
  const size_t slot = self.raw_count_.load(std::memory_order_relaxed) < self.raw_.size()
                          ? self.raw_count_.fetch_add(1, std::memory_order_relaxed)
                          : self.raw_.size();
  if (slot < self.raw_.size()) self.raw_[slot] = {instr, lane, times.begin, times.end};
}

double LaneRecorder::take_exposed_transfer() { return exposed_.exchange(0); }
double LaneRecorder::take_busy(Lane lane) { return busy_[static_cast<int>(lane)].exchange(0); }

void LaneRecorder::capture(size_t instances) {
  raw_.resize(instances);
  raw_count_ = 0;
}

std::vector<TraceEvent> LaneRecorder::captured() const {
  std::vector<TraceEvent> events;
  const size_t count = std::min(raw_count_.load(), raw_.size());
  double start = 1e300;
  for (size_t i = 0; i < count; ++i) start = std::min(start, raw_[i].begin);
  for (size_t i = 0; i < count; ++i)
    if (raw_[i].instr != nullptr)
      events.push_back(
          {raw_[i].instr->name, raw_[i].lane, raw_[i].begin - start, raw_[i].end - start});
  return events;
}

}  // namespace spillway
