// A whole run whose checkpoint files fail: once, at every call in turn, or for good from some call
// on. It goes on or ends as documented, names the file, and what was saved before is there.
// links: spillway_train
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "base/hash.h"
#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "runtime/local_communicator.h"
#include "tests/faulty_files.h"
#include "train/trainer.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSteps = 6;  // a save after 2, 4 and 6

class SaveFaults : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = "/dev/shm/spillway_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    std::random_device device;
    seed_ = device();
    random_.seed(seed_);
    fmt::print("seed {}\n", seed_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  Config config(const std::string& output) const {
    return parse_config(
        fmt::format(
            R"({{"model": {{"family": "llama", "layers": 1, "hidden": 16, "heads": 2, "kv_heads": 2,
                 "ffn": 24, "context": 16}},
                "data": {{"train": ["data/austen.txt"]}},
                "train": {{"steps": {}, "batch": 2, "micro_batch": 2, "threads": 1}},
                "checkpoint": {{"every": 2, "keep": 2, "copy": "{}"}}, "output": "{}"}})",
            kSteps, random_() % 2 ? "auto" : "off", output),
        "test", {});
  }

  struct Run {
    std::optional<ExitCode> code;
    std::string error, warnings;
  };
  Run run(const std::string& output, const std::string& resume, FileSystem* files) {
    TrainOptions options;
    options.resume = resume;
    options.files = files;
    LocalCommunicator alone;
    Run result;
    testing::internal::CaptureStderr();
    testing::internal::CaptureStdout();
    try {
      result.code = train(config(output), options, alone);
    } catch (const Error& e) {
      result.code = e.code();
      result.error = e.what();
    }
    testing::internal::GetCapturedStdout();
    result.warnings = testing::internal::GetCapturedStderr();
    return result;
  }

  uint64_t newest_state(const std::string& output, uint64_t& step) {
    const auto choice = find_resume(posix_file_system(), output, "latest");
    if (!choice) return 0;
    EXPECT_TRUE(choice->skipped.empty());
    step = choice->step;
    return hash_state(CheckpointReader(posix_file_system(), choice->path)).state;
  }

  // Calls to fail at: all of them, or a sample.
  std::vector<int64_t> instants(int64_t calls, size_t count) {
    std::vector<int64_t> all(static_cast<size_t>(calls));
    for (int64_t i = 0; i < calls; ++i) all[static_cast<size_t>(i)] = i;
    std::shuffle(all.begin(), all.end(), random_);
    const char* longer = std::getenv("SPILLWAY_LONG");
    if (longer == nullptr || std::string(longer) != "1") all.resize(std::min(all.size(), count));
    return all;
  }

  std::string folder_;
  uint64_t seed_ = 0;
  mutable std::mt19937_64 random_;
};

TEST_F(SaveFaults, OneCallFails) {
  FaultyFileSystem counting;
  ASSERT_EQ(run(folder_ + "/straight", "", &counting).code, ExitCode::done);
  uint64_t step = 0;
  const uint64_t straight = newest_state(folder_ + "/straight", step);
  ASSERT_EQ(step, static_cast<uint64_t>(kSteps));
  ASSERT_GT(counting.calls, 60);
  int went_on = 0, refused = 0;
  for (const int64_t at : instants(counting.calls, 40)) {
    SCOPED_TRACE(fmt::format("seed {} call {}", seed_, at));
    const std::string output = fmt::format("{}/once{}", folder_, at);
    FaultyFileSystem files;
    files.fail_at = at;
    files.message = random_() % 2 ? "Input/output error" : "No space left on device";
    const Run result = run(output, "", &files);
    if (result.code != ExitCode::done) {
      // Only looking at the folder at start-up: nothing has begun.
      EXPECT_EQ(result.code, ExitCode::bad_input) << result.error;
      EXPECT_NE(result.error.find(files.failed_path), std::string::npos) << result.error;
      EXPECT_TRUE(list_checkpoints(posix_file_system(), output).empty());
      ++refused;
      continue;
    }
    ++went_on;
    // Said, unless it kept nothing from being saved: retention that cannot read keeps more.
    if (!result.warnings.empty()) {
      EXPECT_NE(result.warnings.find(files.failed_path), std::string::npos) << result.warnings;
    }
    EXPECT_EQ(newest_state(output, step), straight);
    EXPECT_EQ(step, static_cast<uint64_t>(kSteps));
    // What could not be removed is invisible, and was complained about.
    for (const FolderEntry& entry : posix_file_system().list(output + "/checkpoints"))
      EXPECT_TRUE(entry.name.rfind("step_", 0) == 0 || !result.warnings.empty()) << entry.name;
    fs::remove_all(output);
  }
  EXPECT_GT(went_on, 20);
  EXPECT_LT(refused, 10);
}

TEST_F(SaveFaults, EverythingFailsFromSomeCallOn) {
  FaultyFileSystem counting;
  ASSERT_EQ(run(folder_ + "/straight", "", &counting).code, ExitCode::done);
  uint64_t step = 0;
  const uint64_t straight = newest_state(folder_ + "/straight", step);
  for (const int64_t at : instants(counting.calls, 15)) {
    SCOPED_TRACE(fmt::format("seed {} call {}", seed_, at));
    const std::string output = fmt::format("{}/dead{}", folder_, at);
    FaultyFileSystem files;
    files.fail_at = at;
    files.crash = true;
    const Run result = run(output, "", &files);
    if (result.code == ExitCode::bad_input) {  // at start-up
      EXPECT_NE(result.error.find(files.failed_path), std::string::npos) << result.error;
    } else if (result.code == ExitCode::internal) {
      EXPECT_NE(result.error.find(fmt::format("step {}", kSteps)), std::string::npos);
      EXPECT_NE(result.error.find(output + "/checkpoints"), std::string::npos) << result.error;
      EXPECT_EQ(result.error.find('\n'), std::string::npos);
    } else {  // the last checkpoint was there already
      EXPECT_EQ(result.code, ExitCode::done);
      EXPECT_EQ(newest_state(output, step), straight);
      EXPECT_EQ(step, static_cast<uint64_t>(kSteps));
      continue;
    }
    // The disk is back: the run goes on from what was saved, and ends as it would have.
    const Run again = run(output, "latest", nullptr);
    EXPECT_EQ(again.code, ExitCode::done) << again.error;
    EXPECT_EQ(newest_state(output, step), straight);
    EXPECT_EQ(step, static_cast<uint64_t>(kSteps));
    fs::remove_all(output);
  }
}

}  // namespace
}  // namespace spillway
