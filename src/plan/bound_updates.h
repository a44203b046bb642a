// Internal to the planner: the part of bound_lp.h's program that is about positions of updates.
//
// Variables: parts of every bucket's layers by position; bytes of gradients that go to the host for
// updates there, of parameters that come back, and that the host's processors move, in each
// interval. Rows:
// - positions that are pinned;
// - an update of this step has its gradient from the interval on that completes it, and is done,
//   its parameters back, between the norm and the step's end;
// - one of the step before is done, its parameters back, by the end of the interval that reads
//   them;
// - the host's processors move no more in an interval than they can in that time.
//
// Every plan is a solution: bytes are counted as they pass, start-up is free. Nothing that such an
// update moves waits in a ring: gradients go to buffers of the host, parameters to their places.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/bound_lp.h"

namespace spillway {

// Columns of shares, and rows of pins. `host`: layers that are not pinned may update there.
void add_positions(const StepModel& model, bool host, BoundLp& program);

// Of a bucket's layers, those that do not update at the end on the device, each times `factor`;
// those that update on the host.
LpTerms elsewhere(const BoundLp& program, int32_t bucket, double factor);
LpTerms on_host(const BoundLp& program, int32_t bucket);

// Bytes on the host, of states and of copies of parameters on the device.
LpTerms held_on_host(const StepModel& model, const BoundLp& program);

// By interval; -1: nothing can pass then. Empty where no layer can be updated on the host.
struct HostUpdates {
  std::vector<int32_t> in, out, cpu;
};
// After the columns of units. `cost`: of a byte that crosses the link.
HostUpdates add_host_updates(const StepModel& model, double byte_scale, double time_scale,
                             double cost, BoundLp& program);

// What ranks gather after an update that is rotated is needed by the next step's readers, not made
// at the end: changes of both stocks by interval.
void move_rotated_gathers(const StepModel& model, const BoundLp& program,
                          const std::function<double(const BucketUpdate&)>& amount_of,
                          std::vector<LpTerms>& needed, std::vector<LpTerms>& made);

}  // namespace spillway
