// A save reads the states of the step it belongs to, whatever runs beside it: the next update waits
// for it, wherever the states live and however slowly the file takes them.
// links: spillway_train
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>

#include "tiny_run.h"

namespace spillway::e2e {
namespace {

Config tiny(bool copy) {
  const std::string text = fmt::format(
      R"({{"model": {{"family": "llama", "layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2,
           "ffn": 48, "context": 16, "vocab": 100}},
          "data": {{"train": ["x"], "tokenizer": "uint16"}},
          "train": {{"steps": 20, "batch": 4, "micro_batch": 2, "threads": 1}},
          "checkpoint": {{"every": 5, "copy": "{}"}}}})",
      copy ? "auto" : "off");
  return parse_config(text, "tiny", {});
}

int program_named(Session& session, const std::string& name) {
  const auto& programs = session.report().plan.lowered.set.programs;
  for (size_t p = 0; p < programs.size(); ++p)
    if (programs[p].name == name) return static_cast<int>(p);
  return -1;
}

// The bytes that a save of the state as it stands should write.
std::vector<char> expected_bytes(Session& s) {
  std::vector<char> bytes;
  for (const SavedSlice& slice : saved_slices(s.train_schedule(), s.homes())) {
    const size_t at = bytes.size();
    bytes.resize(at + static_cast<size_t>(slice.count) * 4);
    if (slice.count > 0)
      s.device().download(bytes.data() + at,
                          s.executor().address(s.homes()[slice.home].buffer, 0, slice.offset),
                          slice.count * 4);
  }
  return bytes;
}

// Keeps what a save writes, and holds it up while it is closed.
class Gate {
 public:
  void take(const void* data, int64_t bytes) {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
    const char* from = static_cast<const char*>(data);
    written_.insert(written_.end(), from, from + bytes);
  }
  void set(bool open) {
    const std::lock_guard lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }
  void await_save() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ > 0; });
  }
  std::vector<char> take_written() {
    const std::lock_guard lock(mutex_);
    waiting_ = 0;
    return std::move(written_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int waiting_ = 0;
  std::vector<char> written_;
};

TEST(Saving, TheNextUpdateWaitsForWhatASaveStillReads) {
  const uint64_t seed = std::random_device{}();
  fmt::print("seed {}\n", seed);
  std::mt19937_64 random(seed);
  for (int trial = 0; trial < times(8); ++trial) {
    const bool copy = trial & 1, moments_on_host = trial & 2, all_on_host = trial & 4;
    SCOPED_TRACE(fmt::format("copy {} moments on host {} all on host {}", copy, moments_on_host,
                             all_on_host));
    const Job job(tiny(copy), 1);
    Placement placement;
    for (const PlaceUnit& unit : place_units(job.front().train.get({1}))) {
      const std::string& name = unit.key.first;
      const bool state = name == "moments" || name == "master" || name == "parameters";
      if (state && (all_on_host || (name == "moments" && moments_on_host)))
        placement.where[unit.key] = Where::host;
    }
    on_ranks(1, [&](int rank, Communicator& communicator) {
      std::mutex mutex;
      std::condition_variable changed;
      bool waiting = false;
      SessionOptions options;
      options.plan_text = job.plan_text(placement, {1});
      options.chaos_seed = random();
      options.chaos_us = 200;
      options.on_host_wait = [&](bool begins) {
        const std::lock_guard lock(mutex);
        waiting = waiting || begins;
        changed.notify_all();
      };
      TinyRank tiny_rank(*job.ranks[rank], communicator, options);
      Session& session = tiny_rank.session();
      Executor& executor = session.executor();
      Gate gate;
      executor.host_lanes().set_sink(
          [&](const void* data, int64_t bytes) { gate.take(data, bytes); });
      const int save = program_named(session, "save");
      ASSERT_EQ(session.report().plan.host.by_class.count("snapshot"), copy ? 1u : 0u);
      ASSERT_GE(save, 0);
      tiny_rank.step(1);
      tiny_rank.step(2);
      const std::vector<char> before = expected_bytes(session);

      gate.set(false);
      executor.run(save);
      gate.await_save();
      std::thread opener;
      if (!copy)
        opener = std::thread([&] {
          // The step cannot get past its update before the file has everything.
          std::unique_lock lock(mutex);
          EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return waiting; }));
          lock.unlock();
          gate.set(true);
        });
      tiny_rank.step(3);  // with a copy the whole step goes by while the file stands still
      if (opener.joinable()) opener.join();
      EXPECT_NE(expected_bytes(session), before);
      if (copy) tiny_rank.step(4);
      gate.set(true);
      // Behind everything that was given to the lane.
      bool done = false;
      executor.host_lanes().synchronise(Lane::io,
                                        executor.host_lanes().call(Lane::io, [&] { done = true; }));
      EXPECT_TRUE(done);
      EXPECT_EQ(gate.take_written(), before);
      EXPECT_EQ(executor.take_stall_seconds() > 0, !copy);

      // And again: what the first save left behind holds nobody up.
      const std::vector<char> later = expected_bytes(session);
      executor.run(save);
      tiny_rank.step(5);
      executor.host_lanes().synchronise(Lane::io, executor.host_lanes().call(Lane::io, [] {}));
      EXPECT_EQ(gate.take_written(), later);
    });
  }
}

// Where the host has no room for the copy beside everything else, there is none, and the plan fits.
TEST(Saving, ACopyIsPlannedOnlyWhereItFits) {
  Job job(tiny(true), 1);
  const Placement placement;
  const Plan roomy = evaluate_placement(job.front().input, placement, {1});
  ASSERT_EQ(roomy.host.by_class.count("snapshot"), 1u);
  job.set_budgets({int64_t{1} << 40, roomy.host.peak});
  EXPECT_EQ(evaluate_placement(job.front().input, placement, {1}).host.peak, roomy.host.peak);
  // Staging is the larger of the two for a model as small as this one.
  for (auto& rank : job.ranks) rank->input.staging_bytes = 4096;
  const Plan copied = evaluate_placement(job.front().input, placement, {1});
  EXPECT_EQ(copied.host.peak, roomy.host.peak);
  job.set_budgets({int64_t{1} << 40, roomy.host.peak - 1});
  const Plan tight = evaluate_placement(job.front().input, placement, {1});
  EXPECT_EQ(tight.host.by_class.count("snapshot"), 0u);
  EXPECT_LT(tight.host.peak, roomy.host.peak);
  EXPECT_EQ(tight.device.peak, roomy.device.peak);
}

}  // namespace
}  // namespace spillway::e2e
