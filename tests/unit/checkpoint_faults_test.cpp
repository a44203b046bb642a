// Every call of the file system fails once, or the machine stops there and loses what was not
// synced: the checkpoint before stays, a published one is whole, and the next save works.
// links: spillway_checkpoint
#include <condition_variable>
#include <mutex>
#include <thread>

#include "checkpoint_support.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;

// Passes on to the real file system and fails at call `fail_at`: that call alone, or, with `crash`,
// that and all later ones. `lose_unsynced` then does to the disk what a power cut may do.
class FaultyFileSystem final : public FileSystem {
 public:
  int64_t fail_at = -1;
  bool crash = false;
  int64_t calls = 0;

  std::unique_ptr<WritableFile> create(const std::string& path) override {
    step(path);
    auto file = real_.create(path);
    sizes_[path] = {0, 0};
    changed_.push_back({Change::created, path, ""});
    return std::make_unique<Writable>(*this, path, std::move(file));
  }
  std::unique_ptr<ReadableFile> open(const std::string& path) override {
    step(path);
    return real_.open(path);
  }
  bool exists(const std::string& path) override {
    step(path);
    return real_.exists(path);
  }
  void make_folder(const std::string& path) override {
    step(path);
    for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
      const std::string part = path.substr(0, end);
      if (!fs::exists(part)) {
        fs::create_directory(part);
        changed_.push_back({Change::created, part, ""});
      }
      if (end == std::string::npos) break;
    }
  }
  void rename(const std::string& from, const std::string& to) override {
    step(from);
    real_.rename(from, to);
    for (auto it = sizes_.begin(); it != sizes_.end();) {
      if (it->first.rfind(from + "/", 0) == 0) {
        sizes_[to + it->first.substr(from.size())] = it->second;
        it = sizes_.erase(it);
      } else {
        ++it;
      }
    }
    for (Change& change : changed_) {
      if (change.path.rfind(from + "/", 0) == 0) change.path = to + change.path.substr(from.size());
    }
    changed_.push_back({Change::renamed, to, from});
  }
  void remove(const std::string& path) override {
    step(path);
    real_.remove(path);
    sizes_.erase(path);
    std::erase_if(changed_,
                  [&](const Change& c) { return c.path == path && c.kind == Change::created; });
  }
  void sync_folder(const std::string& path) override {
    step(path);
    std::erase_if(changed_, [&](const Change& c) {
      return fs::path(c.path).parent_path() == fs::path(path);
    });
  }
  std::vector<FolderEntry> list(const std::string& path) override {
    step(path);
    return real_.list(path);
  }

  // Bytes not synced are gone or garbage; names not synced are gone or not, by chance, in the order
  // of a journal: if one survives, so do those before it.
  void lose_unsynced(Random& random) {
    for (const auto& [path, size] : sizes_) {
      if (size.first == size.second || !fs::exists(path)) continue;
      fs::resize_file(path, size.first);
      if (random() % 2) fs::resize_file(path, size.second);  // the right size, zeros inside
    }
    const size_t survive = random() % (changed_.size() + 1);
    while (changed_.size() > survive) {
      const Change change = changed_.back();
      changed_.pop_back();
      if (!fs::exists(change.path)) continue;
      if (change.kind == Change::renamed) {
        fs::rename(change.path, change.from);
      } else {
        fs::remove_all(change.path);
      }
    }
  }

 private:
  struct Change {
    enum Kind { created, renamed } kind;
    std::string path, from;
  };
  struct Writable final : WritableFile {
    Writable(FaultyFileSystem& owner, std::string path, std::unique_ptr<WritableFile> file)
        : owner(owner), path(std::move(path)), file(std::move(file)) {}
    void write(const void* data, int64_t bytes) override {
      try {
        owner.step(path);
      } catch (...) {
        file->write(data, bytes / 2);  // a failed write leaves a part behind
        owner.sizes_[path].second += bytes / 2;
        throw;
      }
      file->write(data, bytes);
      owner.sizes_[path].second += bytes;
    }
    void sync() override {
      owner.step(path);
      owner.sizes_[path].first = owner.sizes_[path].second;
    }
    void close() override {
      owner.step(path);
      file->close();
    }
    FaultyFileSystem& owner;
    std::string path;
    std::unique_ptr<WritableFile> file;
  };

  void step(const std::string& path) {
    const int64_t call = calls++;
    if (fail_at >= 0 && (call == fail_at || (crash && call > fail_at))) {
      bad_input("{}: No space left on device (injected)", path);
    }
  }

  FileSystem& real_ = posix_file_system();
  std::map<std::string, std::pair<int64_t, int64_t>> sizes_;  // synced, written
  std::vector<Change> changed_;                               // since their folder was synced
};

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
  int64_t min(int64_t) override { internal_error("not in this test"); }
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
      apply_retention(files, output, 1, second_step);
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
    apply_retention(posix_file_system(), output, 1, 30);
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

// All ranks together: `broken` is the rank whose file system fails, or -1.
struct Together {
  std::vector<SaveOutcome> outcomes;
  std::vector<std::string> errors;
};
Together save_together(const std::string& output, uint64_t step, const TestState& state, int ranks,
                       int broken, int64_t fail_at, Random& random) {
  const auto slices = deal(state, ranks, random);
  ThreadCommunicator::Shared shared(ranks);
  Together result{std::vector<SaveOutcome>(ranks), std::vector<std::string>(ranks)};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadCommunicator communicator(shared, rank);
      FaultyFileSystem files;
      if (rank == broken) files.fail_at = fail_at;
      std::vector<std::byte> staging(256);
      try {
        result.outcomes[rank] = save_checkpoint(files, communicator, output, run_at(step, ranks),
                                                slices[rank], staging, 2);
      } catch (const Error& e) {
        result.errors[rank] = e.what();
      }
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
