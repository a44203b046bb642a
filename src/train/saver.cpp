#include "train/saver.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "train/state.h"
#include "train/together.h"

namespace spillway {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Adds the time it lives to two sums.
class Stopwatch {
 public:
  Stopwatch(double& a, double& b) : a_(a), b_(b) {}
  ~Stopwatch() {
    const double seconds = now() - begin_;
    a_ += seconds;
    b_ += seconds;
  }

 private:
  double &a_, &b_;
  const double begin_ = now();
};

}  // namespace

Saver::Saver(FileSystem& files, Communicator& communicator, const Config& config,
             Watchdog& watchdog, Console& console)
    : config_(config),
      watchdog_(watchdog),
      console_(console),
      saving_(files, communicator, config.output,
              {config.checkpoint.keep, config.checkpoint.keep_every},
              [this](std::function<void()> work) {
                session_->executor().host_lanes().call(Lane::io, std::move(work));
              }) {}

void Saver::use(Session& session) {
  session_ = &session;
  slices_ = checkpoint_slices(session.train_schedule(), session.homes());
  save_program_ = session.program("save");
  session.executor().host_lanes().set_sink(
      [this](const void* data, int64_t bytes) { saving_.append(data, bytes); });
}

// What the executor's issuing thread waited belongs to the save in progress.
void Saver::collect_waits() {
  const double waited = session_->executor().take_stall_seconds();
  stall_ += waited;
  stall_of_save_ += waited;
}

std::optional<SaveOutcome> Saver::start(const RunState& run) {
  collect_waits();
  stall_of_save_ = 0;
  const Stopwatch watch(stall_, stall_of_save_);
  if (auto failed = saving_.begin(run, slices_)) return failed;
  session_->flush_updates();
  session_->executor().run(save_program_);
  saving_.end_shard();
  return std::nullopt;
}

void Saver::begin(const RunState& run) {
  drain();
  watchdog_.enter(Phase::saving, static_cast<int64_t>(run.step));
  announce(start(run));
}

void Saver::poll() {
  if (!saving_.in_progress()) return;
  collect_waits();
  std::optional<SaveOutcome> outcome;
  {
    const Stopwatch watch(stall_, stall_of_save_);
    outcome = saving_.poll();
  }
  announce(outcome);
}

void Saver::drain() {
  if (!saving_.in_progress()) return;
  watchdog_.enter(Phase::saving, static_cast<int64_t>(saving_.step()));
  collect_waits();
  std::optional<SaveOutcome> outcome;
  {
    const Stopwatch watch(stall_, stall_of_save_);
    outcome = saving_.wait();
  }
  announce(outcome);
}

void Saver::save_now(const RunState& run) {
  drain();
  constexpr int kAttempts = 2;
  std::optional<SaveOutcome> outcome;
  for (int attempt = 1; attempt <= kAttempts; ++attempt) {
    watchdog_.enter(Phase::saving, static_cast<int64_t>(run.step));
    outcome = start(run);
    if (!outcome) {
      const Stopwatch watch(stall_, stall_of_save_);
      outcome = saving_.wait();
    }
    if (outcome->error.empty()) return announce(outcome);
    if (attempt < kAttempts)
      console_.warning(fmt::format("the checkpoint of step {} could not be saved: {}; trying again",
                                   run.step, outcome->error));
  }
  throw SharedError(ExitCode::internal,
                    fmt::format("the checkpoint of step {} could not be saved, tried twice: {}; "
                                "what was saved before is as it was",
                                run.step, outcome->error));
}

double Saver::take_stall_seconds() {
  collect_waits();
  return std::exchange(stall_, 0.0);
}

std::optional<SaveMetrics> Saver::take_saved() { return std::exchange(saved_, std::nullopt); }

std::string Saver::next_attempt(uint64_t step) const {
  const auto every = static_cast<uint64_t>(config_.checkpoint.every);
  const auto last = static_cast<uint64_t>(config_.train.steps);
  return fmt::format("step {}", every > 0 ? std::min(last, (step / every + 1) * every) : last);
}

void Saver::announce(const std::optional<SaveOutcome>& outcome) {
  if (!outcome) return;
  if (!outcome->error.empty()) {
    console_.warning(fmt::format(
        "the checkpoint of step {} could not be saved: {}; the run goes on and saves again at {}",
        outcome->step, outcome->error, next_attempt(outcome->step)));
    return;
  }
  if (!outcome->warning.empty()) console_.warning(outcome->warning);
  saved_ = SaveMetrics{static_cast<int64_t>(outcome->step), outcome->bytes, outcome->write_seconds,
                       outcome->seconds, stall_of_save_};
  console_.line(fmt::format("checkpoint {} ({} in {}, {}/s; training waited {:.1f} ms)",
                            outcome->path, format_bytes(outcome->bytes),
                            format_duration(outcome->write_seconds),
                            format_bytes(static_cast<int64_t>(static_cast<double>(outcome->bytes) /
                                                              outcome->write_seconds)),
                            1e3 * stall_of_save_));
}

}  // namespace spillway
