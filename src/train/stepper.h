// A planned run on random tokens, for benchmarks: steps at will.
#pragma once

#include "runtime/backend.h"
#include "runtime/local_communicator.h"
#include "train/session.h"
#include "train/workload.h"

namespace spillway {

class Stepper {
 public:
  // Plans, starts the device and initialises parameters and tokens from a fixed seed.
  Stepper(const Config& config, int threads);
  // … as one of the ranks of `communicator`, which outlives it, all of which make one.
  Stepper(const Config& config, const Topology& topology, const HardwareProfile& profile,
          const BackendChoice& backend, Communicator& communicator);

  double step();  // seconds, from the first instruction issued to the last one done
  Session& session() { return session_; }
  const Workload& workload() const { return workload_; }

 private:
  Stepper(const Config& config, int threads, const BackendChoice& backend);
  void initialise();

  LocalCommunicator alone_;
  Workload workload_;
  Session session_;
};

}  // namespace spillway
