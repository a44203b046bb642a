// Every call of the file system fails once, or the machine stops there and loses what was not
// synced: the checkpoint before stays, a published one is whole, and the next save works.
// links: spillway_checkpoint
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "checkpoint/saving.h"
#include "checkpoint_support.h"
#include "tests/faulty_files.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;

// Ranks as threads.
class ThreadCommunicator final : public Communicator {
 public:
  struct Shared {
    explicit Shared(int ranks) : size(ranks), parts(ranks) {}
    const int size;
    std::vector<std::string> parts;
    std::mutex mutex;
    std::condition_variable changed;
    int arrived = 0, round = 0;
  };
  ThreadCommunicator(Shared& shared, int rank) : shared_(shared), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return shared_.size; }
  int ranks_on_node() const override { return shared_.size; }
  int node_count() const override { return 1; }
  void exchange(const ExchangeArgs&) override { internal_error("not in this test"); }
  void barrier() override {
    std::unique_lock lock(shared_.mutex);
    const int round = shared_.round;
    if (++shared_.arrived == shared_.size) {
      shared_.arrived = 0;
      ++shared_.round;
      shared_.changed.notify_all();
    } else {
      shared_.changed.wait(lock, [&] { return shared_.round != round; });
    }
  }
  void broadcast(void*, int64_t, int) override { internal_error("not in this test"); }
  std::string broadcast_text(const std::string& text, int root) override { return all(text)[root]; }
  int64_t max(int64_t) override { internal_error("not in this test"); }
  int64_t min(int64_t value) override {
    int64_t least = value;
    for (const std::string& part : all(std::to_string(value)))
      least = std::min<int64_t>(least, std::stoll(part));
    return least;
  }
  std::string gather_text(const std::string& text) override {
    const auto parts = all(text);
    std::string joined;
    for (const std::string& part : parts) joined += part + "\n";
    return rank_ == 0 ? joined : "";
  }
  void gather(const void*, int64_t, void*) override { internal_error("not in this test"); }
  void abort() noexcept override {}

 private:
  std::vector<std::string> all(const std::string& text) {
    shared_.parts[rank_] = text;
    barrier();
    const std::vector<std::string> parts = shared_.parts;
    barrier();
    return parts;
  }
  Shared& shared_;
  int rank_;
};

using Faults = CheckpointTest;

void fault_at_every_call(const std::string& output, uint64_t second_step, bool crash) {
  Random random(crash ? 1 : 2);
  const TestState before = random_state(random, 2, 6), after = random_state(random, 2, 6);
  int64_t calls = 1, failures = 0, survived = 0, published = 0;
  for (int64_t at = 0; at < calls; ++at) {
    SCOPED_TRACE("call " + std::to_string(at));
    fs::remove_all(output);
    fs::create_directory(output);
    save(posix_file_system(), output, 10, before, 2, random);

    bool returned = false;
    const auto attempt = [&](FaultyFileSystem& files) {
      Random same(7);  // the same shards, so the same calls, every time
      save(files, output, second_step, after, 2, same);
      returned = true;
      apply_retention(files, output, {1, 0}, second_step);
    };
    FaultyFileSystem counting;
    attempt(counting);
    calls = counting.calls;
    fs::remove_all(output);
    fs::create_directory(output);
    save(posix_file_system(), output, 10, before, 2, random);

    FaultyFileSystem files;
    files.fail_at = at;
    files.crash = crash;
    bool failed = false;
    returned = false;
    try {
      attempt(files);
    } catch (const Error&) {
      failed = true;
    }
    if (crash) files.lose_unsynced(random);

    const auto choice = find_resume(posix_file_system(), output, "latest");
    ASSERT_TRUE(choice.has_value());
    EXPECT_TRUE(choice->skipped.empty());
    for (const CheckpointFolder& folder : list_checkpoints(posix_file_system(), output)) {
      EXPECT_NO_THROW(CheckpointReader(posix_file_system(), folder.path).verify());
    }
    const bool is_before = holds(choice->path, before), is_after = holds(choice->path, after);
    EXPECT_TRUE(is_before || is_after);
    // What was published is durable. Retention takes what it cannot read for incomplete, and so
    // keeps more; any other failure is thrown.
    EXPECT_TRUE(!returned || is_after);
    EXPECT_TRUE(failed || returned);
    failures += failed;
    survived += is_before;
    published += is_after;

    // Life goes on: another save, and nothing but checkpoints is left.
    save(posix_file_system(), output, 30, after, 3, random);
    apply_retention(posix_file_system(), output, {1, 0}, 30);
    const auto left = posix_file_system().list(output + "/checkpoints");
    ASSERT_EQ(left.size(), 1u);
    EXPECT_EQ(left[0].name, "step_00000030");
  }
  EXPECT_GT(failures, 20);
  EXPECT_GT(survived, 15);
  EXPECT_GT(published, 2);
}

TEST_F(Faults, OneCallFails) { fault_at_every_call(output_, 20, false); }
TEST_F(Faults, OneCallFailsWhileReplacingAStep) { fault_at_every_call(output_, 10, false); }
TEST_F(Faults, TheMachineStops) {
  for (int trial = 0; trial < 4; ++trial) fault_at_every_call(output_, 20, true);
}
TEST_F(Faults, TheMachineStopsWhileReplacingAStep) {
  for (int trial = 0; trial < 4; ++trial) fault_at_every_call(output_, 10, true);
}

TEST_F(Faults, TheFirstCheckpointIsDurableOnceSaved) {
  Random random(6);
  const TestState state = random_state(random, 2, 6);
  for (int trial = 0; trial < 30; ++trial) {
    fs::remove_all(output_);
    fs::create_directory(output_);
    FaultyFileSystem files;
    save(files, output_, 1, state, 2, random);
    files.lose_unsynced(random);
    const auto choice = find_resume(posix_file_system(), output_, "latest");
    ASSERT_TRUE(choice.has_value());
    EXPECT_TRUE(holds(choice->path, state));
  }
}

// The io lane of a rank.
class IoThread {
 public:
  ~IoThread() {
    run({});
    thread_.join();
  }
  void run(std::function<void()> work) {  // an empty one ends it
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    changed_.notify_all();
  }

 private:
  void loop() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !queue_.empty(); });
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      if (!work) return;
      work();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::thread thread_{[this] { loop(); }};
};

// All ranks together: `broken` is the rank whose file system fails, or -1. Some wait, some poll, as
// the trainer does: all the same.
struct Together {
  std::vector<SaveOutcome> outcomes;
  std::vector<std::string> errors;
};
Together save_together(const std::string& output, uint64_t step, const TestState& state, int ranks,
                       int broken, int64_t fail_at, Random& random) {
  const auto slices = deal(state, ranks, random);
  const bool polls = random() % 2 == 0;
  ThreadCommunicator::Shared shared(ranks);
  Together result{std::vector<SaveOutcome>(ranks), std::vector<std::string>(ranks)};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadCommunicator communicator(shared, rank);
      FaultyFileSystem files;
      if (rank == broken) files.fail_at = fail_at;
      std::optional<SaveOutcome> outcome;
      std::optional<IoThread> io;
      Saving saving(files, communicator, output, {2, 0},
                    [&](std::function<void()> work) { io->run(std::move(work)); });
      io.emplace();
      outcome = saving.begin(run_at(step, ranks), slices_of(slices[rank]));
      if (!outcome) {
        io->run([&] {
          append_all(slices[rank], 256,
                     [&](const void* data, int64_t n) { saving.append(data, n); });
        });
        saving.end_shard();
        while (polls && !outcome) outcome = saving.poll();
        if (!outcome) outcome = saving.wait();
      }
      EXPECT_FALSE(saving.in_progress());
      io.reset();
      result.errors[rank] = outcome->error;
      result.outcomes[rank] = *outcome;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return result;
}

TEST_F(Faults, RanksSaveTogether) {
  Random random(3);
  for (int ranks : {1, 2, 4}) {
    const TestState state = random_state(random, 3, 9);
    const uint64_t step = 100 + ranks;
    const Together result = save_together(output_, step, state, ranks, -1, 0, random);
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(result.errors[rank], "");
      EXPECT_EQ(result.outcomes[rank].path, output_ + "/checkpoints/" + step_folder(step));
      EXPECT_EQ(result.outcomes[rank].warning, "");
    }
    EXPECT_TRUE(holds(result.outcomes[0].path, state));
    if (ranks == 4) {
      EXPECT_EQ(result.outcomes[0].removed,
                std::vector<std::string>{output_ + "/checkpoints/step_00000101"});
    }
  }
}

TEST_F(Faults, AFailureOfOneRankIsTheSameErrorOnAll) {
  Random random(4);
  const TestState before = random_state(random, 2, 6), after = random_state(random, 2, 6);
  save(posix_file_system(), output_, 1, before, 2, random);
  for (int broken = 0; broken < 3; ++broken) {
    for (int64_t at = 0; at < 5; ++at) {
      SCOPED_TRACE(std::to_string(broken) + " at " + std::to_string(at));
      const Together result = save_together(output_, 2, after, 3, broken, at, random);
      EXPECT_NE(result.errors[0].find("injected"), std::string::npos) << result.errors[0];
      EXPECT_EQ(result.errors[1], result.errors[0]);
      EXPECT_EQ(result.errors[2], result.errors[0]);
      const auto left = posix_file_system().list(output_ + "/checkpoints");
      // Rank 0 itself may fail before it can clean up; the others never leave anything behind.
      if (broken != 0) {
        EXPECT_EQ(left.size(), 1u);
      }
      EXPECT_EQ(find_resume(posix_file_system(), output_, "latest")->step, 1u);
    }
  }
  const Together result = save_together(output_, 2, after, 3, -1, 0, random);
  EXPECT_TRUE(holds(result.outcomes[2].path, after));
}

// Every call of a resume fails once, reads cut short among them: it resumes from the same state, or
// from the checkpoint before and says why, or says what it could not read; never from anything
// else.
TEST_F(Faults, EveryCallOfAResumeFails) {
  Random random(8);
  const TestState before = random_state(random, 2, 6), after = random_state(random, 2, 6);
  save(posix_file_system(), output_, 10, before, 2, random);
  const std::string newest = save(posix_file_system(), output_, 20, after, 3, random);
  FaultyFileSystem counting;
  find_resume(counting, output_, "latest");
  int fell_back = 0, refusals = 0;
  for (int64_t at = 0; at < counting.calls; ++at) {
    SCOPED_TRACE("call " + std::to_string(at));
    FaultyFileSystem files;
    files.fail_at = at;
    files.message = "Input/output error";
    try {
      const auto choice = find_resume(files, output_, "latest");
      ASSERT_TRUE(choice.has_value());
      EXPECT_TRUE(holds(choice->path, choice->step == 20 ? after : before));
      if (choice->step == 20) continue;
      ++fell_back;
      ASSERT_EQ(choice->skipped.size(), 1u);
      EXPECT_EQ(choice->skipped[0].path, newest);
      EXPECT_NE(choice->skipped[0].reason.find(files.failed_path), std::string::npos);
    } catch (const Error& e) {
      ++refusals;
      EXPECT_NE(std::string(e.what()).find(files.failed_path), std::string::npos) << e.what();
    }
    FaultyFileSystem named;
    named.fail_at = at;
    try {
      EXPECT_EQ(find_resume(named, output_, newest)->step, 20u);
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(newest), std::string::npos) << e.what();
    }
    EXPECT_EQ(find_resume(posix_file_system(), output_, "latest")->step, 20u);
  }
  EXPECT_GT(fell_back, 20);
  EXPECT_GT(refusals, 1);

  // And of reading what was chosen.
  for (int64_t at = 0;; ++at) {
    FaultyFileSystem files;
    files.fail_at = at;
    try {
      const CheckpointReader reader(files, newest);
      hash_state(reader);
      EXPECT_LE(files.calls, at);
      break;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(files.failed_path), std::string::npos) << e.what();
    }
  }
}

TEST_F(Faults, AFullDiskAndAForbiddenFolderAreBadInput) {
  Random random(5);
  EXPECT_NE(refused([&] {
              begin_checkpoint(posix_file_system(), "/proc/nowhere", 1);
            }).find("/proc/nowhere"),
            std::string::npos);
  // Linux's own full disk.
  const auto full = posix_file_system().create("/dev/full");
  EXPECT_NE(refused([&] { full->write("x", 1); }).find("No space left"), std::string::npos);
}

}  // namespace
}  // namespace spillway
