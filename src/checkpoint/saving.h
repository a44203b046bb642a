// A save that all ranks take part in while they go on training: the io lane's thread writes the
// shard, and rank 0's publishes the checkpoint; the main threads only agree, at step boundaries.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/store.h"
#include "checkpoint/writer.h"
#include "runtime/device.h"

namespace spillway {

// The same on all ranks, but for `removed` and `warning`.
struct SaveOutcome {
  uint64_t step = 0;
  std::string path;   // of the checkpoint; "" if it failed
  std::string error;  // why it failed: rank and file; the earlier checkpoints are as they were
  int64_t bytes = 0;  // of all shards
  double write_seconds = 0;          // of the rank that took longest to write and sync its shard
  double seconds = 0;                // from `begin` until it was published
  std::vector<std::string> removed;  // by retention; rank 0 only
  std::string warning;               // retention failed, the checkpoint is good; rank 0 only
};

// One save at a time. Lives longer than the thread that `on_io` runs functions on.
class Saving {
 public:
  // Gives a function to the io lane: they run one after the other, in order.
  using OnIo = std::function<void(std::function<void()>)>;

  Saving(FileSystem& files, Communicator& communicator, std::string output, Retention retention,
         OnIo on_io);

  bool in_progress() const { return stage_ != Stage::idle; }
  uint64_t step() const { return run_.step; }  // of the save in progress

  // Main thread, all ranks, with no save in progress: makes the folder, and tells the io lane to
  // open this rank's shard. The bytes then go to `append`, and `end_shard` comes after the last.
  // Returns the outcome if it fails at once (no folder); then nothing else is to be called.
  std::optional<SaveOutcome> begin(const RunState& run, const std::vector<TensorSlice>& slices);

  // io lane. The first error is kept for the outcome; what comes after it is ignored.
  void append(const void* data, int64_t bytes);
  // Main thread, after the io lane was given all that appends.
  void end_shard();

  // Main thread, all ranks, at a step boundary: moves the save on, without waiting for a disk.
  // Returns its outcome once it is over.
  std::optional<SaveOutcome> poll();
  // … or waits until it is; nullopt if there is none in progress.
  std::optional<SaveOutcome> wait();

 private:
  enum class Stage { idle, writing, publishing };

  std::optional<SaveOutcome> advance(bool block);
  void guarded(const std::function<void()>& work);
  void publish(const std::string& lines);
  bool done(bool block);
  void set_done();

  FileSystem& files_;
  Communicator& communicator_;
  const std::string output_;
  const Retention retention_;
  const OnIo on_io_;

  // Main thread:
  Stage stage_ = Stage::idle;
  RunState run_;
  double begun_ = 0;
  // io lane:
  std::unique_ptr<ShardWriter> shard_;
  double opened_ = 0;
  // Written by the io lane before it sets done_, read after that:
  std::string line_;  // this rank's report or error; then, on rank 0, the outcome
  bool failed_ = false;
  std::vector<std::string> removed_;
  std::string warning_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;  // the io lane has finished what `stage_` asks of it
};

}  // namespace spillway
