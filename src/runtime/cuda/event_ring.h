// The newest recorded points of one lane, in events that are created once.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "runtime/cuda/cuda_error.h"
#include "runtime/device.h"

namespace spillway::cuda {

// A lane runs in order, so an event that stands behind ticket t or any later one says that t is
// done. When an event is reused, waits for its old ticket go to the oldest point that is left,
// which is later than need be but never too early.
class EventRing {
 public:
  EventRing(int count, const Place& place);
  ~EventRing();  // destroys the events, unless `leak` was called
  EventRing(const EventRing&) = delete;
  EventRing& operator=(const EventRing&) = delete;

  // Behind everything that `stream` was given so far, the last of which is `ticket`.
  void record(cudaStream_t stream, Ticket ticket, const Place& place);
  // The earliest point that is kept at or behind `ticket`: its event and ticket. There must be one.
  struct Point {
    cudaEvent_t event = nullptr;
    Ticket ticket = 0;
  };
  Point at_or_behind(Ticket ticket) const;
  Ticket newest() const { return recorded_ == 0 ? 0 : point(recorded_ - 1).ticket; }
  void leak() { leaked_ = true; }

 private:
  const Point& point(size_t i) const { return points_[i % points_.size()]; }

  std::vector<Point> points_;
  size_t recorded_ = 0;  // in all; the newest points_.size() are kept
  bool leaked_ = false;
};

}  // namespace spillway::cuda
