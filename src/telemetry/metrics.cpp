#include "telemetry/metrics.h"

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

MetricsFile::MetricsFile(const std::string& path) : path_(path) {
  file_ = std::fopen(path.c_str(), "a");
  if (file_ == nullptr) bad_input("{}: cannot be opened for writing: {}", path, strerror(errno));
}

MetricsFile::~MetricsFile() {
  if (file_ != nullptr) std::fclose(file_);
}

void MetricsFile::append(const StepMetrics& metrics) {
  const std::string line = to_json_line(metrics) + "\n";
  if (std::fwrite(line.data(), 1, line.size(), file_) != line.size() || std::fflush(file_) != 0)
    fail(ExitCode::internal, "{}: cannot be written: {}", path_, strerror(errno));
}

}  // namespace spillway
