// What a person sees while a run goes on: a live bar on a terminal, plain lines in a log.
#pragma once

#include <cstdint>
#include <string>

#include "telemetry/metrics.h"

namespace spillway {

class Console {
 public:
  // Silent unless `enabled` (rank 0).
  Console(bool enabled, int64_t total_steps);
  ~Console();
  void line(const std::string& text);     // above the bar
  void warning(const std::string& text);  // to standard error
  void step(const StepMetrics& metrics);

 private:
  void clear_bar();
  bool enabled_, terminal_;
  int64_t total_steps_;
  bool bar_shown_ = false;
  double last_line_ = -1e9, smooth_seconds_ = 0;
};

std::string format_duration(double seconds);  // "1h 02m", "3m 20s", "12.3 s"

}  // namespace spillway
