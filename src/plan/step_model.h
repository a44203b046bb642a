// Internal to the planner: one order of the work (a group size), reduced to what decides how fast
// it can be. The linear program of bound_lp.h is built from it.
//
// Time is cut into intervals: the compute lane's work on one bucket of neighbouring layers in one
// pass. Iterations of a step are three: the first, the average of those between, the last. Bytes
// and seconds of the middle one are averages over its `weight` iterations.
//
// Plans of one order may sum over ranks at once or a layer later, and gather a layer ahead or not.
// What is fetched or gathered counts where the last of them needs it, what is made where the first
// has it, and compute, that of sums included, where the last does it: early, it would have bytes
// leave before they are made. So what is counted holds for each of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "config/resources.h"
#include "plan/plan.h"

namespace spillway {

enum class Pool : uint8_t { activations, parameters, gradients, state };
constexpr int kPools = 4;

// Where a layer's update stands, as the linear program chooses it: as UpdatePosition.
constexpr int kPositions = 4;
constexpr int index_of(UpdatePosition p) { return static_cast<int>(p); }
// Updates on the host leave the passes alone, whenever they run: both positions stream alike.
constexpr int kStreamings = 3;
constexpr int streaming_of(int position) {
  return std::min(position, index_of(UpdatePosition::host));
}

struct Interval {
  std::string name;    // "first forward 3"
  double weight = 1;   // times a step
  double compute = 0;  // seconds; of updates only what is not one layer's
};

// What one choice for a unit moves in an interval.
struct Flow {
  int32_t interval = 0;
  double in_bytes = 0, out_bytes = 0;
  double in_copies = 0, out_copies = 0;
};

// Bytes of a slot that copies fill, as end and begin.
using SlotCopies = std::set<std::pair<int64_t, int64_t>>;
// The most of them that are apart.
int32_t most_apart(const SlotCopies& copies);

// Streamed one way, a unit needs a slot of at least `bytes` in ring `ring`.
struct SlotNeed {
  int32_t ring = 0;
  double bytes = 0;
  SlotCopies copies;  // of any stay
};

struct Streaming {
  std::vector<Flow> flows;  // by interval
  std::vector<SlotNeed> slots;
};

// The units of one name in the layers of one bucket.
struct BucketUnit {
  std::string name;
  int32_t bucket = 0;
  Pool pool = Pool::activations;
  std::vector<PlaceKey> keys;  // by layer
  double bytes = 0;            // of all layers
  // … on the host if streamed: less what leaves its slot for good before anything else needs it.
  std::array<double, kStreamings> home_bytes = {};
  bool can_stream = false, can_recompute = false;
  std::array<double, 3> pinned = {};             // fraction of the layers, by Where
  std::array<Streaming, kStreamings> streaming;  // activations: [0] alone; state: not on the host
};

// A forward node of every layer of a bucket that the backward pass may repeat.
struct RepeatedNode {
  int32_t bucket = 0;
  std::vector<int32_t> units;   // whose recomputation repeats it
  std::vector<int32_t> needed;  // repeated nodes whose outputs it reads, never kept
  double seconds = 0;           // of all layers and micro-batches of one iteration
};

struct BucketUpdate {
  // Seconds of compute by interval, at the end of the step and rotated.
  std::array<std::vector<std::pair<int32_t, double>>, 2> compute;
  // On the host: bytes that its processors move, of gradients that go there, of parameters that
  // come back.
  double cpu_bytes = 0, gradient_bytes = 0, parameter_bytes = 0;
  // The interval that completes the first layer's gradients; the one that needs the last layer's
  // parameters in the next step.
  int32_t complete = -1, needed = -1;
  std::array<double, kPositions> pinned = {};  // fraction of the layers
  double on_host = 0;                          // … that may be updated there
  // Parameters that ranks gather after it: seconds and bytes, which Exchanges::made includes.
  double gather_seconds = 0;
  std::array<double, kTraffics> gather_bytes = {};
};

// Exchanges, in seconds of the communication lane or in bytes of one kind of traffic. `needed` must
// be done by the end of the interval, `made` can begin when it does.
struct Exchanges {
  std::vector<double> needed, made;  // by interval
};

struct RingModel {
  std::string name;
  Pool pool = Pool::activations;
};

struct StepModel {
  ScheduleChoice choice;                  // all updates at the end
  int32_t buckets = 0;                    // embedding and head included
  std::vector<SharedResource> resources;  // of this rank's device
  std::vector<Interval> intervals;
  std::array<int32_t, 3> iteration_begin = {-1, -1, -1};  // first interval; -1: none
  int32_t update_begin = 0;                      // … of the updates; the last is the tail
  std::vector<std::array<int32_t, 3>> backward;  // by bucket: interval in each iteration, or -1
  std::vector<BucketUnit> units;
  std::vector<RepeatedNode> repeated;
  std::vector<BucketUpdate> updates;           // by bucket
  Exchanges exchanges;                         // seconds
  std::array<Exchanges, kTraffics> exchanged;  // bytes
  std::vector<RingModel> rings;
  double fixed_device_bytes = 0, fixed_host_bytes = 0;  // of any placement

  double bytes_exchanged(Traffic kind) const;  // a step
};

// Resources of which exchanges and copies each way, if there are any, each as fast as it is alone,
// would ask much more than there is. Of the others the lanes' rows say nearly as much, and of
// exchanges alone all of it.
std::vector<const SharedResource*> contended(const StepModel& model, bool in, bool out);

// `blocks`: at most this many buckets of block layers.
StepModel step_model(const PlanInput& input, int32_t group, int32_t blocks);

}  // namespace spillway
