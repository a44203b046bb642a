#include "runtime/cuda/lane_clock.h"

#include <algorithm>

namespace spillway::cuda {
namespace {

double seconds(cudaEvent_t from, cudaEvent_t to, const Place& place) {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, from, to), "cudaEventElapsedTime", place);
  return 1e-3 * static_cast<double>(milliseconds);
}

}  // namespace

LaneClock::LaneClock(int entries, const Place& place) : entries_(static_cast<size_t>(entries)) {
  check(cudaEventCreate(&base_), "cudaEventCreate", place);
  for (Entry& e : entries_)
    for (cudaEvent_t* event : {&e.before, &e.begin, &e.end})
      check(cudaEventCreate(event), "cudaEventCreate", place);
}

LaneClock::~LaneClock() {
  if (leaked_) return;
  for (const Entry& e : entries_)
    for (cudaEvent_t event : {e.before, e.begin, e.end})
      if (event) cudaEventDestroy(event);
  if (base_) cudaEventDestroy(base_);
}

void LaneClock::before(Lane lane, const Instr* instr, cudaStream_t stream, const Place& place) {
  if (used_ == entries_.size()) {
    const size_t half = std::max<size_t>(1, used_ / 2);
    for (size_t i = 0; i < half; ++i)
      check(cudaEventSynchronize(entry(i).end), "cudaEventSynchronize", place);
    deliver(half, place);
  }
  if (used_ == 0) check(cudaEventRecord(base_, stream), "cudaEventRecord", place);
  Entry& e = entry(used_++);
  e.lane = lane;
  e.instr = instr;
  e.sink = sink_;
  e.context = context_;
  check(cudaEventRecord(e.before, stream), "cudaEventRecord", place);
}

void LaneClock::begin(cudaStream_t stream, const Place& place) {
  check(cudaEventRecord(entry(used_ - 1).begin, stream), "cudaEventRecord", place);
}

void LaneClock::end(cudaStream_t stream, const Place& place) {
  check(cudaEventRecord(entry(used_ - 1).end, stream), "cudaEventRecord", place);
}

void LaneClock::deliver(size_t count, const Place& place) {
  for (size_t i = 0; i < count; ++i) {
    const Entry& e = entry(i);
    LaneTimes times;
    times.begin = seconds(base_, e.begin, place);
    times.end = seconds(base_, e.end, place);
    times.waited = std::max(0.0, seconds(e.before, e.begin, place));
    e.sink(e.context, e.lane, e.instr, times);
  }
  first_ = (first_ + count) % entries_.size();
  used_ -= count;
}

}  // namespace spillway::cuda
