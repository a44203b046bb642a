// One rank's planned programs on a device: what training, evaluation and benchmarks run on.
#pragma once

#include <memory>
#include <string>

#include "runtime/cpu/cpu_device.h"
#include "runtime/executor.h"
#include "telemetry/timeline.h"
#include "train/workload.h"

namespace spillway {

struct SessionOptions {
  std::string plan_file;  // "": make a plan
  bool poison = false;
  uint64_t chaos_seed = 0;
  int chaos_us = 0;
  std::string plan_text;  // what a plan file would hold; used if there is no plan_file
};

class Session {
 public:
  // Plans on rank 0, agrees on all, verifies, reserves the arenas. Throws Error(does_not_fit) with
  // the shortfall, Error(internal) if the verifier finds anything.
  Session(const Workload& workload, Communicator& communicator, const SessionOptions& options);

  const Workload& workload() const { return workload_; }
  const PlanReport& report() const { return report_; }
  const Schedule& train_schedule() const { return workload_.train[report_.plan.reduce_delay]; }
  const std::vector<Home>& homes() const { return report_.plan.lowered.homes; }
  Executor& executor() { return *executor_; }
  CpuDevice& device() { return *device_; }
  LaneRecorder& recorder() { return *recorder_; }
  double verify_seconds() const { return verify_seconds_; }
  const std::string& plan_json() const { return plan_json_; }

  template <class T>
  T* io(const std::string& name, int32_t version = 0) {
    return static_cast<T*>(executor_->address(report_.plan.lowered.io.at(name), version, 0));
  }
  std::span<std::byte> staging();

 private:
  void adopt_plan(bool made_here, const std::string& plan_file);

  const Workload& workload_;
  PlanReport report_;
  std::string plan_json_;
  double verify_seconds_ = 0;
  std::unique_ptr<CpuDevice> device_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<LaneRecorder> recorder_;
};

}  // namespace spillway
