#include "telemetry/console.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "config/config.h"

namespace spillway {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

spdlog::logger& log_to(bool standard_error) {
  static const auto loggers = [] {
    auto out =
        std::make_shared<spdlog::logger>("out", std::make_shared<spdlog::sinks::stdout_sink_mt>());
    auto err =
        std::make_shared<spdlog::logger>("err", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    for (auto& logger : {out, err}) {
      logger->set_pattern("%v");
      logger->flush_on(spdlog::level::info);
    }
    return std::pair{out, err};
  }();
  return standard_error ? *loggers.second : *loggers.first;
}

// Whether a person sees standard output. Under mpirun a rank writes to a pseudo-terminal of the
// launcher's, so what counts is where the launcher writes.
bool shown_on_terminal() {
  if (isatty(STDOUT_FILENO) != 1) return false;
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) return true;
  char target[256];
  const std::string link = fmt::format("/proc/{}/fd/1", getppid());
  const ssize_t length = readlink(link.c_str(), target, sizeof target);
  const std::string_view path(target, length > 0 ? static_cast<size_t>(length) : 0);
  return path.starts_with("/dev/pts/") || path.starts_with("/dev/tty");
}

constexpr double kLineSeconds = 2;  // between two lines of a log
constexpr int kBarWidth = 20;

}  // namespace

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  const int64_t s = static_cast<int64_t>(seconds);
  if (s < 3600) return fmt::format("{}m {:02}s", s / 60, s % 60);
  return fmt::format("{}h {:02}m", s / 3600, s / 60 % 60);
}

Console::Console(bool enabled, int64_t total_steps)
    : enabled_(enabled), terminal_(shown_on_terminal()), total_steps_(total_steps) {}

Console::~Console() { clear_bar(); }

void Console::clear_bar() {
  if (!bar_shown_) return;
  fmt::print("\r\033[K");
  std::fflush(stdout);
  bar_shown_ = false;
}

void Console::line(const std::string& text) {
  if (!enabled_) return;
  clear_bar();
  log_to(false).info(text);
}

void Console::warning(const std::string& text) {
  if (!enabled_) return;
  clear_bar();
  log_to(true).info("warning: {}", text);
}

void Console::step(const StepMetrics& m) {
  if (!enabled_) return;
  smooth_seconds_ =
      smooth_seconds_ == 0 ? m.step_seconds : 0.9 * smooth_seconds_ + 0.1 * m.step_seconds;
  const double left = smooth_seconds_ * static_cast<double>(total_steps_ - m.step);
  const std::string text = fmt::format(
      "step {}/{}  loss {:.4f}  {:.0f} tok/s  MFU {:.1f} %  device {}  host {}  exposed {:.1f} ms  "
      "ETA {}",
      m.step, total_steps_, m.loss, m.tokens_per_second, 100 * m.mfu,
      format_bytes(m.device_peak_bytes), format_bytes(m.host_peak_bytes),
      1e3 * m.exposed_transfer_seconds, format_duration(left));
  if (m.validation_loss) {
    line(fmt::format("step {}  validation loss {:.4f}", m.step, *m.validation_loss));
  }
  if (terminal_) {
    const int filled = static_cast<int>(kBarWidth * m.step / std::max<int64_t>(1, total_steps_));
    fmt::print("\r\033[K[{}{}] {}", std::string(filled, '#'), std::string(kBarWidth - filled, '.'),
               text);
    std::fflush(stdout);
    bar_shown_ = true;
    return;
  }
  if (now() - last_line_ < kLineSeconds && m.step != total_steps_ && m.step != 1) return;
  last_line_ = now();
  log_to(false).info(text);
}

}  // namespace spillway
