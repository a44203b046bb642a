#include "train/straggler.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

namespace spillway {
namespace {

constexpr double kFactor = 1.5;
constexpr double kLeastSeconds = 0.005;  // less is the system's noise

double median_of(std::vector<double> seconds) {
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>((seconds.size() - 1) / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

struct Name {
  char host[64];
};

}  // namespace

std::vector<int> slow_ranks(const std::vector<double>& seconds, double least) {
  const double median = median_of(seconds);
  std::vector<int> slow;
  for (size_t r = 0; r < seconds.size(); ++r)
    if (seconds[r] > kFactor * median && seconds[r] > median + least)
      slow.push_back(static_cast<int>(r));
  return slow;
}

StragglerWatch::StragglerWatch(Communicator& communicator)
    : communicator_(communicator),
      all_(static_cast<size_t>(communicator.size())),
      pause_(all_.size(), 1),
      quiet_(all_.size(), 0) {
  Name own{};
  gethostname(own.host, sizeof own.host - 1);
  std::vector<Name> names(all_.size());
  communicator.gather(&own, sizeof own, names.data());
  for (const Name& name : names) hosts_.push_back(name.host);
}

std::string StragglerWatch::step(double own_seconds) {
  sum_ += own_seconds;
  if (++steps_ % kSteps != 0 || all_.size() == 1) return "";
  const double mean = sum_ / kSteps;
  sum_ = 0;
  communicator_.gather(&mean, sizeof mean, all_.data());
  for (int64_t& rounds : quiet_) rounds = std::max<int64_t>(0, rounds - 1);
  std::string told;
  for (const int r : slow_ranks(all_, kLeastSeconds)) {
    const auto rank = static_cast<size_t>(r);
    if (quiet_[rank] > 0) continue;
    quiet_[rank] = pause_[rank] *= 2;
    told += fmt::format("{}rank {} (host {}) works {:.1f} ms a step, the median rank {:.1f} ms",
                        told.empty() ? "straggler: " : "; ", r, hosts_[rank], 1e3 * all_[rank],
                        1e3 * median_of(all_));
  }
  return told;
}

}  // namespace spillway
