// A rank that is slower than the others holds them all up, and every rank's step takes as long as
// its: only the time that a rank spends on work of its own tells who it is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/device.h"

namespace spillway {

// Ranks whose seconds exceed the median (the lower of the middle two) by half and by `least`.
std::vector<int> slow_ranks(const std::vector<double>& seconds, double least);

class StragglerWatch {
 public:
  static constexpr int64_t kSteps = 20;  // that are averaged

  explicit StragglerWatch(Communicator& communicator);

  // Once a step, collective: the seconds that this rank computed and waited for its data. Returns
  // what the user should know, the same on all ranks, or "": a rank that stays slow is named again
  // after twice as many steps each time.
  std::string step(double own_seconds);

 private:
  Communicator& communicator_;
  std::vector<std::string> hosts_;  // by rank
  std::vector<double> all_;
  std::vector<int64_t> pause_, quiet_;  // by rank: rounds to be silent; of them left
  double sum_ = 0;
  int64_t steps_ = 0;
};

}  // namespace spillway
