#include "runtime/cuda/event_ring.h"

#include <algorithm>

namespace spillway::cuda {

EventRing::EventRing(int count, const Place& place) : points_(static_cast<size_t>(count)) {
  for (Point& p : points_)
    check(cudaEventCreateWithFlags(&p.event, cudaEventDisableTiming), "cudaEventCreateWithFlags",
          place);
}

EventRing::~EventRing() {
  if (leaked_) return;
  for (const Point& p : points_)
    if (p.event) cudaEventDestroy(p.event);
}

void EventRing::record(cudaStream_t stream, Ticket ticket, const Place& place) {
  Point& p = points_[recorded_ % points_.size()];
  check(cudaEventRecord(p.event, stream), "cudaEventRecord", place);
  p.ticket = ticket;
  ++recorded_;
}

EventRing::Point EventRing::at_or_behind(Ticket ticket) const {
  size_t low = recorded_ > points_.size() ? recorded_ - points_.size() : 0, high = recorded_;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (point(middle).ticket < ticket)
      low = middle + 1;
    else
      high = middle;
  }
  if (low == recorded_) internal_error("no event stands behind ticket {}", ticket);
  return point(low);
}

}  // namespace spillway::cuda
