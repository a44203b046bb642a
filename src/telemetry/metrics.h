// <output>/metrics.jsonl: one JSON object a step, appended and flushed; always parses, whatever the
// values (what is not finite is null). Rows repeated after a resume stay; the last one wins.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace spillway {

// A checkpoint that was published since the row before.
struct SaveMetrics {
  int64_t step = 0, bytes = 0;  // of all ranks
  double write_seconds = 0;     // of the slowest rank's file, synced
  double seconds = 0;           // from its step until it was published
  double stall_seconds = 0;     // of them: what training waited
};

struct StepMetrics {
  int64_t step = 0;
  double loss = 0, grad_norm = 0, lr = 0;
  int64_t tokens = 0;  // trained on so far, all ranks
  double tokens_per_second = 0, mfu = 0;
  int64_t device_peak_bytes = 0, host_peak_bytes = 0;
  double exposed_transfer_seconds = 0, step_seconds = 0;
  double save_stall_seconds = 0;  // since the row before, spent on saves or waiting for them
  std::string token_hash;
  bool skipped = false;
  std::optional<double> validation_loss;  // on steps that evaluate
  std::optional<SaveMetrics> saved;
};

std::string to_json_line(const StepMetrics& metrics);

// A row that cannot be written (a full disk) is kept and written with the next one that can, at the
// latest when the file is closed; what cannot even then is named on standard error.
class MetricsFile {
 public:
  explicit MetricsFile(const std::string& path);  // appends; throws Error(bad_input) if it cannot
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;
  // Returns why rows wait, when they begin to; otherwise "".
  std::string append(const StepMetrics& metrics);

 private:
  int write_pending();  // 0, or why it cannot

  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;     // of whole rows
  std::string pending_;  // rows that are not written yet
};

}  // namespace spillway
