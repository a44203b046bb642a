#include "train/bench_checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/quantile.h"
#include "runtime/local_communicator.h"
#include "train/saver.h"
#include "train/stepper.h"

namespace spillway {
namespace {

// Seconds that dd takes to write `bytes` zeros to `path` and sync them.
double dd_seconds(const std::string& path, int64_t bytes) {
  const std::string command = fmt::format(
      "LC_ALL=C dd if=/dev/zero of='{}' bs=4M count={} iflag=count_bytes conv=fsync 2>&1", path,
      bytes);
  std::string said;
  std::FILE* dd = popen(command.c_str(), "r");
  if (dd == nullptr) internal_error("bench: dd cannot be started: {}", strerror(errno));
  char piece[256];
  while (std::fgets(piece, sizeof piece, dd) != nullptr) said += piece;
  const int status = pclose(dd);
  // "… bytes (54 MB, 51 MiB) copied, 0.0712 s, 758 MB/s"
  const size_t at = said.find("copied, ");
  if (status != 0 || at == std::string::npos) bad_input("bench: dd failed: {}", said);
  std::remove(path.c_str());
  return std::stod(said.substr(at + std::strlen("copied, ")));
}

}  // namespace

void bench_checkpoint(Config config, int threads, int64_t repeat) {
  constexpr int64_t kInterval = 50;
  config.checkpoint.every = kInterval;
  config.output += "-bench";
  std::filesystem::remove_all(config.output);
  std::filesystem::create_directories(config.output);
  LocalCommunicator alone;
  Watchdog watchdog(alone);
  Console silent(false, kInterval);
  Saver saver(posix_file_system(), alone, config, watchdog, silent);
  Stepper stepper(config, threads);
  saver.use(stepper.session());
  RunState run;
  run.config = to_json_text(config);
  stepper.step();

  std::vector<double> without, with, waited;
  for (int64_t i = 0; i < repeat; ++i) {
    for (const bool saves : {false, true}) {
      const auto begin = std::chrono::steady_clock::now();
      saver.take_stall_seconds();
      run.step += kInterval;
      if (saves) saver.begin(run);
      for (int64_t step = 0; step < kInterval; ++step) {
        watchdog.enter(Phase::step, static_cast<int64_t>(run.step) + step);
        stepper.step();
        saver.poll();
      }
      saver.drain();
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      (saves ? with : without).push_back(seconds.count());
      if (saves) waited.push_back(saver.take_stall_seconds());
    }
  }
  std::vector<double> files, dd;
  int64_t bytes = 0;
  for (int64_t i = 0; i < repeat; ++i) {
    run.step += kInterval;
    saver.save_now(run);
    const auto saved = saver.take_saved();
    bytes = saved->bytes;
    files.push_back(saved->write_seconds);
    watchdog.enter(Phase::saving, static_cast<int64_t>(run.step));
    dd.push_back(dd_seconds(config.output + "/dd", bytes));
  }
  std::filesystem::remove_all(config.output);
  watchdog.leave(ExitCode::done);

  const double plain = median(without), saving = median(with), stall = median(waited);
  const auto rate = [&](double seconds) {
    return format_bytes(static_cast<int64_t>(static_cast<double>(bytes) / seconds));
  };
  fmt::print(
      "{} steps: {:.2f} s without a save, {:.2f} s with one (medians of {}, taking turns): "
      "{:+.2f} %\n",
      kInterval, plain, saving, repeat, 100 * (saving / plain - 1));
  fmt::print("training waited {:.1f} ms for a save: {:.3f} % of the time\n", 1e3 * stall,
             100 * stall / saving);
  fmt::print(
      "{} written and synced in {:.3f} s, {}/s; dd conv=fsync {:.3f} s, {}/s: {:.0f} % of "
      "dd's bandwidth\n",
      format_bytes(bytes), median(files), rate(median(files)), median(dd), rate(median(dd)),
      100 * median(dd) / median(files));
}

}  // namespace spillway
