// Checkpoints of a run: begun between two steps, written while the next ones run.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/file.h"
#include "checkpoint/saving.h"
#include "runtime/watchdog.h"
#include "telemetry/console.h"
#include "telemetry/metrics.h"
#include "train/session.h"

namespace spillway {

// All calls on all ranks, main thread. Outlives the session's executor, whose io lane works for it.
class Saver {
 public:
  Saver(FileSystem& files, Communicator& communicator, const Config& config, Watchdog& watchdog,
        Console& console);
  void use(Session& session);  // before anything else

  // Saves the state that the executor holds now. Waits for the save before if there is still one. A
  // failure is a warning; the run goes on.
  void begin(const RunState& run);

  // At a step boundary: a save that is over is announced.
  void poll();

  // Waits for the save in progress, if any, and announces it.
  void drain();

  // Saves and waits for it. A failure is tried once more, then thrown as SharedError(internal).
  void save_now(const RunState& run);

  // What saves cost since the last call: time that the main thread spent on them or waited for
  // them, and the save that was announced.
  double take_stall_seconds();
  std::optional<SaveMetrics> take_saved();

 private:
  std::optional<SaveOutcome> start(const RunState& run);
  void announce(const std::optional<SaveOutcome>& outcome);
  std::string next_attempt(uint64_t step) const;
  void collect_waits();

  const Config& config_;
  Watchdog& watchdog_;
  Console& console_;
  Saving saving_;
  Session* session_ = nullptr;
  std::vector<TensorSlice> slices_;
  int save_program_ = -1;
  double stall_ = 0;          // since the last take_stall_seconds
  double stall_of_save_ = 0;  // since the save in progress began
  std::optional<SaveMetrics> saved_;
};

}  // namespace spillway
