// One rank's planned programs on a device: what training, evaluation and benchmarks run on.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/backend.h"
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
  BackendChoice backend;
  Kernel (*kernels)(OpKind) = nullptr;             // for tests: in place of the CPU backend's own
  std::string gemm_algorithms;                     // of the checkpoint that is resumed, or ""
  std::function<void(const std::string&)> say;     // lines for the user while the device starts
  std::function<void(bool waiting)> on_host_wait;  // of Executor::Options
};

// The device of `options.backend`, not started yet (device.h says how). Throws what it throws.
std::unique_ptr<Device> make_device(const Workload& workload, Communicator& communicator,
                                    const SessionOptions& options);

class Session {
 public:
  // Plans on rank 0, agrees on all, verifies, starts the device and reserves the arenas. Throws
  // Error(does_not_fit) with the shortfall, once by the profile's numbers before anything is
  // allocated and again if the device has less; Error(internal) if the verifier finds anything.
  Session(const Workload& workload, Communicator& communicator, const SessionOptions& options);

  const Workload& workload() const { return workload_; }
  const PlanReport& report() const { return report_; }
  const Schedule& train_schedule() const { return workload_.train.get(report_.plan.schedule); }
  const std::vector<Home>& homes() const { return report_.plan.lowered.homes; }
  Executor& executor() { return *executor_; }
  Device& device() { return *device_; }
  LaneRecorder& recorder() { return *recorder_; }
  // Device memory that was in use beside the arena when everything had been warmed up.
  int64_t foreign_at_start() const { return foreign_at_start_; }
  double verify_seconds() const { return verify_seconds_; }
  const std::string& plan_json() const { return plan_json_; }

  // Applies updates that the plan has put into the next step, and returns when that is done. Before
  // evaluations, checks of the ranks and checkpoints; harmless if nothing is pending.
  void flush_updates();
  int program(std::string_view name) const;             // its index, or -1: the plan has none
  int flush_program() const { return flush_program_; }  // -1: the plan rotates no update

  template <class T>
  T* io(const std::string& name, int32_t version = 0) {
    return static_cast<T*>(executor_->address(report_.plan.lowered.io.at(name), version, 0));
  }

 private:
  void prepare_flush();
  void adopt_plan(bool made_here, const std::string& plan_file);

  const Workload& workload_;
  PlanReport report_;
  std::string plan_json_;
  std::optional<QualityProof> proof_;  // of a plan that was not made here
  double verify_seconds_ = 0;
  int flush_program_ = -1;
  int64_t foreign_at_start_ = 0;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<LaneRecorder> recorder_;
};

}  // namespace spillway
