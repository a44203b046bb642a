// Training graph → schedule: optimizer state and update nodes, sums over ranks, stages.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "config/config.h"
#include "parallel/schedule.h"

namespace spillway {

// Numerics of the run for `rank` of `ranks`; `ranks_on_node` decides `tree` if it is auto.
// Throws bad_input where batch, micro_batch, ranks or reduce_every do not divide.
ParallelSpec parallel_spec(const Config& config, int rank, int ranks, int ranks_on_node);

// Values of ScheduleChoice::group, ascending: those that divide the micro-batches of a step and
// hold whole reductions, or a whole part of one.
std::vector<int32_t> group_choices(const ParallelSpec& spec);

// forward graph (GraphMode::train) → the train schedule of one rank.
Schedule build_train_schedule(const Graph& forward, const OptimizerConfig& optimizer,
                              const ParallelSpec& spec, const ScheduleChoice& choice);

// Forward and backward pass of one micro-batch by the train schedule's nodes, in its buffers
// ("check"): the output "digests" f64[n] holds the digest of every gradient accumulator, in the
// order of digested_tensors. Changes nothing that outlives a step.
Schedule build_check_schedule(const Graph& forward, const OptimizerConfig& optimizer,
                              const ParallelSpec& spec, const ScheduleChoice& choice);
std::vector<std::string> digested_tensors(const Schedule& check);

// Applies the rotated updates that are pending after a run of `train`, before anything else reads
// the parameters or a checkpoint is saved. Reads the same tensors; its "scalars", whose skip_update
// must be set, mark that nothing is pending any more.
Schedule build_flush_schedule(const Schedule& train);

// The train schedules of one rank, each built when it is first asked for. Not for several threads.
class TrainSchedules {
 public:
  TrainSchedules() = default;
  TrainSchedules(Graph forward, OptimizerConfig optimizer, const ParallelSpec& spec)
      : forward_(std::move(forward)), optimizer_(std::move(optimizer)), spec_(spec) {}
  const Schedule& get(const ScheduleChoice& choice) const;    // stays where it is
  const Schedule& check(const ScheduleChoice& choice) const;  // … and the one that borrows from it
  const Schedule* flush(const ScheduleChoice& choice) const;  // nullptr: no update is rotated
  const ParallelSpec& spec() const { return spec_; }
  // The same for a ZeRO stage that is not free.
  TrainSchedules with_zero(int32_t stage) const;

 private:
  Graph forward_;
  OptimizerConfig optimizer_;
  ParallelSpec spec_;
  mutable std::map<ScheduleChoice, Schedule> built_, built_checks_, built_flushes_;
};

// A forward-only schedule ("evaluate", "prefill", "decode") of one stage, with parameters sharded
// as in the train schedule of `choice`.
Schedule build_forward_schedule(const std::string& name, const Graph& forward,
                                const ParallelSpec& spec, const ScheduleChoice& choice = {});

// The forward schedules of one name, likewise.
class ForwardSchedules {
 public:
  ForwardSchedules() = default;
  ForwardSchedules(std::string name, Graph forward, const ParallelSpec& spec)
      : name_(std::move(name)), forward_(std::move(forward)), spec_(spec) {}
  const Schedule& get(const ScheduleChoice& choice) const;
  ForwardSchedules with_zero(int32_t stage) const;

 private:
  std::string name_;
  Graph forward_;
  ParallelSpec spec_;
  mutable std::map<std::vector<int32_t>, Schedule> built_;  // by ScheduleChoice::zero
};

}  // namespace spillway
