// When instructions ran, by timed events: created once, read when their lanes have been waited for.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "runtime/cuda/cuda_error.h"
#include "runtime/device.h"

namespace spillway::cuda {

class LaneClock {
 public:
  LaneClock(int entries, const Place& place);
  ~LaneClock();  // destroys the events, unless `leak` was called
  LaneClock(const LaneClock&) = delete;
  LaneClock& operator=(const LaneClock&) = delete;

  void set(Device::TimeSink sink, void* context, Device::Timed what) {
    sink_ = sink, context_ = context, what_ = what;
  }
  // Whether an instruction of `lane` that `waits` for others is to be timed.
  bool wants(Lane lane, bool waits) const {
    return sink_ && (what_ == Device::Timed::all || (waits && lane == Lane::compute));
  }

  // Around one instruction on its stream: before its waits, behind them, behind its work. With all
  // entries in use, `before` first waits for the older half.
  void before(Lane lane, const Instr* instr, cudaStream_t stream, const Place& place);
  void begin(cudaStream_t stream, const Place& place);
  void end(cudaStream_t stream, const Place& place);

  // Gives everything recorded to its sink. The lanes must have been waited for.
  void deliver(const Place& place) { deliver(used_, place); }
  void leak() { leaked_ = true; }

 private:
  struct Entry {
    cudaEvent_t before = nullptr, begin = nullptr, end = nullptr;
    Lane lane = Lane::compute;
    const Instr* instr = nullptr;
    Device::TimeSink sink = nullptr;
    void* context = nullptr;
  };
  Entry& entry(size_t i) { return entries_[(first_ + i) % entries_.size()]; }
  void deliver(size_t count, const Place& place);

  std::vector<Entry> entries_;
  size_t first_ = 0, used_ = 0;
  // Times are differences to this event, recorded when no entry is in use: a float of milliseconds
  // is exact enough over one step, not over a run.
  cudaEvent_t base_ = nullptr;
  Device::TimeSink sink_ = nullptr;
  void* context_ = nullptr;
  Device::Timed what_ = Device::Timed::all;
  bool leaked_ = false;
};

}  // namespace spillway::cuda
