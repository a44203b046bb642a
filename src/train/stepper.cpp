#include "train/stepper.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>

#include "train/state.h"

namespace spillway {
namespace {

BackendChoice backend_alone(const Config& config) {
  LocalCommunicator alone;
  return choose_backend(config.hardware.backend, alone);
}

}  // namespace

Stepper::Stepper(const Config& config, int threads)
    : Stepper(config, threads, backend_alone(config)) {}

Stepper::Stepper(const Config& config, int threads, const BackendChoice& backend)
    : workload_(config, Topology{.threads = threads},
                profile_for(backend, config.hardware, alone_)),
      session_(workload_, alone_, {.backend = backend}) {
  initialise();
}

Stepper::Stepper(const Config& config, const Topology& topology, const HardwareProfile& profile,
                 const BackendChoice& backend, Communicator& communicator)
    : workload_(config, topology, profile),
      session_(workload_, communicator, {.backend = backend}) {
  initialise();
}

void Stepper::initialise() {
  const Config& config = workload_.config;
  initialise_state(session_.train_schedule(), session_.homes(), session_.executor(), 1);
  std::mt19937 rng(1);
  const int64_t rows = config.train.micro_batch * config.model.context;
  for (int32_t m = 0; m < workload_.spec.micro_batches; ++m) {
    int32_t* tokens = session_.io<int32_t>("train.tokens", m);
    int32_t* targets = session_.io<int32_t>("train.targets", m);
    int32_t* order = session_.io<int32_t>("train.token_order", m);
    for (int64_t r = 0; r < rows; ++r) {
      tokens[r] = static_cast<int32_t>(rng() % config.model.vocab);
      targets[r] = static_cast<int32_t>(rng() % config.model.vocab);
      order[r] = static_cast<int32_t>(r);
    }
    std::stable_sort(order, order + rows,
                     [tokens](int32_t a, int32_t b) { return tokens[a] < tokens[b]; });
  }
  StepScalars scalars;
  scalars.step = 1;
  scalars.lr = 1e-5f;
  scalars.beta1_correction = 0.1f;
  scalars.beta2_correction = 0.05f;
  std::memcpy(session_.io<StepScalars>("train.scalars"), &scalars, sizeof scalars);
}

double Stepper::step() {
  const auto begin = std::chrono::steady_clock::now();
  session_.executor().run(0);
  session_.executor().finish();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return seconds.count();
}

}  // namespace spillway
