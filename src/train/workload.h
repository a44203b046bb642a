// A run as its stages see it, before any device or rank exists: config → schedules → planner input.
#pragma once

#include <memory>

#include "config/config.h"
#include "config/hardware.h"
#include "parallel/schedule.h"
#include "plan/plan.h"

namespace spillway {

struct Topology {
  int rank = 0, ranks = 1, ranks_on_node = 1;
  int threads = 1;  // compute threads of this rank
};

// What a rank's process may hold in host memory besides its arenas: code, libraries, tables. An
// upper bound, the same for every model.
constexpr int64_t kProcessReserveBytes = int64_t{512} << 20;

// Holds what PlanInput points to; not copied or moved once made.
struct Workload {
  // By default the profile is the one that the config names.
  Workload(const Config& config, const Topology& topology);
  Workload(const Config& config, const Topology& topology, const HardwareProfile& profile);
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;

  Config config;
  Topology topology;
  ParallelSpec spec;
  TrainSchedules train;
  ForwardSchedules evaluate;
  PlanInput input;
  double flops_per_token = 0;
  int64_t tokens_per_step = 0;  // over all ranks
  PlanSubject subject;          // what a plan must be for, to be this run's

  double flops_per_step() const { return flops_per_token * static_cast<double>(tokens_per_step); }
  // FLOP/s that MFU is measured against: the profile's peak of the run's precision, per rank.
  double peak_flops() const;
};

constexpr int64_t kStagingBytes = int64_t{4} << 20;  // of the way of device memory to a checkpoint

}  // namespace spillway
