// When instructions really ran: exposed transfer time of every step, and the lanes of one step as a
// Chrome trace beside the planned ones.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "program/program.h"
#include "runtime/device.h"

namespace spillway {

const char* name_of(Lane lane);  // for people

// One bar of a trace.
struct TraceEvent {
  std::string name;
  Lane lane = Lane::compute;
  double begin = 0, end = 0;  // seconds from the step's start
};

// Bytes in use by class at one moment of the planned step.
struct TraceCounter {
  std::string name;  // "device memory"
  double seconds = 0;
  std::map<std::string, int64_t> values;
};

// Chrome trace JSON: process 0 is what was planned (with memory as counters), process 1 what was
// measured.
std::string chrome_trace(const std::vector<TraceEvent>& planned,
                         const std::vector<TraceEvent>& measured,
                         const std::vector<TraceCounter>& memory);

// Give `sink` and `this` to Device::record_times. Nothing is allocated while lanes run.
class LaneRecorder {
 public:
  explicit LaneRecorder(const Program& program);

  static void sink(void* context, Lane lane, const Instr* instr, const LaneTimes& times);

  // Compute time spent waiting for copies since the last call: seconds.
  double take_exposed_transfer();
  double take_busy(Lane lane);  // seconds that the lane executed since the last call

  void capture(size_t instances);  // records the next `instances` instructions
  std::vector<TraceEvent> captured() const;

 private:
  const Program& program_;
  std::vector<uint8_t> waits_for_copy_;  // by instruction
  std::atomic<double> exposed_{0};
  std::array<std::atomic<double>, kLaneCount> busy_{};
  struct Raw {
    const Instr* instr;
    Lane lane;
    double begin, end;
  };
  std::vector<Raw> raw_;
  std::atomic<size_t> raw_count_{0};
};

}  // namespace spillway
