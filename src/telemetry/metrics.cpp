#include "telemetry/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace spillway {

std::string to_json_line(const StepMetrics& m) {
  nlohmann::ordered_json row;
  row["step"] = m.step;
  row["loss"] = m.loss;  // nlohmann prints what is not finite as null
  row["grad_norm"] = m.grad_norm;
  row["lr"] = m.lr;
  row["tokens"] = m.tokens;
  row["tokens_per_second"] = m.tokens_per_second;
  row["mfu"] = m.mfu;
  row["device_peak_bytes"] = m.device_peak_bytes;
  row["host_peak_bytes"] = m.host_peak_bytes;
  row["exposed_transfer_seconds"] = m.exposed_transfer_seconds;
  row["step_seconds"] = m.step_seconds;
  row["save_stall_seconds"] = m.save_stall_seconds;
  row["token_hash"] = m.token_hash;
  if (m.skipped) row["skipped"] = true;
  if (m.validation_loss) row["validation_loss"] = *m.validation_loss;
  if (m.saved)
    row["checkpoint"] = {{"step", m.saved->step},
                         {"bytes", m.saved->bytes},
                         {"write_seconds", m.saved->write_seconds},
                         {"seconds", m.saved->seconds},
                         {"stall_seconds", m.saved->stall_seconds}};
  return row.dump();
}

namespace {

// Bytes up to the last end of a row: a machine that stopped may have left a row in part.
int64_t whole_rows(int fd) {
  char piece[4096];
  for (int64_t end = lseek(fd, 0, SEEK_END); end > 0;) {
    const int64_t begin = std::max<int64_t>(0, end - static_cast<int64_t>(sizeof piece));
    const ssize_t n = pread(fd, piece, static_cast<size_t>(end - begin), begin);
    if (n <= 0) return end;
    for (int64_t i = n; i > 0; --i)
      if (piece[i - 1] == '\n') return begin + i;
    end = begin;
  }
  return 0;
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path) : path_(path) {
  fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) bad_input("{}: cannot be opened for writing: {}", path, strerror(errno));
  size_ = whole_rows(fd_);
  if (lseek(fd_, 0, SEEK_END) != size_ && ftruncate(fd_, size_) != 0)
    bad_input("{}: its last row cannot be removed: {}", path, strerror(errno));
}

MetricsFile::~MetricsFile() {
  if (const int error = write_pending(); error != 0)
    fmt::print(stderr, "{}: the last {} rows are lost: {}\n", path_,
               std::count(pending_.begin(), pending_.end(), '\n'), strerror(error));
  close(fd_);
}

std::string MetricsFile::append(const StepMetrics& metrics) {
  const bool waiting = !pending_.empty();
  pending_ += to_json_line(metrics) + "\n";
  const int error = write_pending();
  if (error == 0 || waiting) return "";
  return fmt::format("{}: cannot be written: {}; rows are kept until it can", path_,
                     strerror(error));
}

int MetricsFile::write_pending() {
  for (size_t done = 0; done < pending_.size();) {
    const ssize_t now = write(fd_, pending_.data() + done, pending_.size() - done);
    if (now < 0 && errno == EINTR) continue;
    if (now > 0) {
      done += static_cast<size_t>(now);
      continue;
    }
    const int error = errno;
    // No row is left in part: another program may be reading.
    const bool cut = done == 0 || ftruncate(fd_, size_) == 0;
    if (!cut) {
      size_ += static_cast<int64_t>(done);
      pending_.erase(0, done);
    }
    return error;
  }
  size_ += static_cast<int64_t>(pending_.size());
  pending_.clear();
  return 0;
}

}  // namespace spillway
