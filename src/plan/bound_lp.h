// Internal to the planner: the linear program over a step model that no plan of that order of work
// can beat.
//
// Variables: seconds of every interval; fractions of every bucket's units on the device, streamed,
// recomputed, with each position of the update (bound_updates.h); bytes that each pool moves each
// way in each interval; bytes of each ring. Rows:
// - an interval takes at least its compute, repeated nodes included;
// - what a lane moves in an interval takes no longer than the interval does, at the rate that it
//   has while no other lane moves anything;
// - what lanes move together passes what they share, host memory or both ways of a link, no faster
//   than that passes it;
// - what is needed by the end of an interval has been fetched, what is written is written back
//   afterwards and by the end of the step;
// - bytes fetched ahead or waiting to be written back stand in rings; a ring has at least one slot
//   of every unit that passes through it;
// - memory of both tiers: tensors that are kept have bytes of their own, as the packing gives them.
// Start-up time of copies counts as bytes that the link could have moved meanwhile. Shared
// resources are idle then, so their rows have columns of their own, of bytes alone.
//
// Every plan is a solution. Of a copy under way a pool's column counts start-up and bytes as they
// pass, at no moment more than the lane's rate. A column of bytes alone counts what has moved of
// them; what has come ahead and what has to be written back obey the rows of stocks in either
// measure, and those of rings: at the end of an interval both stand in slots, apart. Simulated
// flows never ask more of a resource than it has, so over an interval neither do their bytes, each
// times the resource's weight for its kind. The middle iteration's numbers are means of its
// iterations', and rows are linear.
#pragma once

#include <algorithm>

#include "plan/lp.h"
#include "plan/step_model.h"

namespace spillway {

struct UnitColumns {
  // By position; activations: [0] alone; state: not of updates on the host, where it then is.
  std::array<int32_t, kPositions> device = {-1, -1, -1, -1}, host = {-1, -1, -1, -1};
  int32_t recompute = -1;
};

struct BoundLp {
  Lp lp;
  std::vector<UnitColumns> units;  // as StepModel::units
  std::vector<int32_t> rings;      // as StepModel::rings; -1: nothing can pass
  // Parts of the layers, by position but for the end, and bucket; -1: none can be there.
  std::array<std::vector<int32_t>, kPositions> share;
  std::vector<int32_t> seconds;  // by interval
};

// What makes the program one to round instead of a bound.
struct RoundingAid {
  int32_t slots = 0;         // of every ring, no more and no fewer; 0: what the program likes
  double usable_link = 1;    // part of the links' time that may be filled
  double cost_of_bytes = 0;  // seconds that moving a byte costs besides: nothing moves in vain
  bool host_updates = true;  // false: of pinned layers alone

  // Micro-batches of a group pass through a layer one after the other, each in a slot of its own,
  // while the copies of the next layer's parameters and states take their time: as many slots as
  // for layers would be too few.
  int32_t slots_of(Pool pool, int32_t group) const {
    constexpr int32_t kVisits = 8;
    return pool == Pool::activations ? std::max(slots, std::min(group, kVisits * slots)) : slots;
  }
};

// What may be streamed that is not pinned to be. `unless_recomputable`: what cannot be recomputed.
enum class Streams : uint8_t { nothing, unless_recomputable, all };

// `horizon`: seconds that the step need not exceed.
BoundLp bound_lp(const StepModel& model, const HardwareProfile& profile, const Budgets& budgets,
                 double horizon, Streams streams, const RoundingAid& aid = {});

}  // namespace spillway
