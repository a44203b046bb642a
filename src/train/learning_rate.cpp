#include "train/learning_rate.h"

#include <cmath>

namespace spillway {

double learning_rate(const OptimizerConfig& o, int64_t step, int64_t steps) {
  if (step <= o.warmup) return o.lr * static_cast<double>(step) / static_cast<double>(o.warmup);
  const double p = steps == o.warmup ? 1.0
                                     : static_cast<double>(step - o.warmup) /
                                           static_cast<double>(steps - o.warmup);
  switch (o.schedule) {
    case LrSchedule::cosine:
      return o.min_lr + (o.lr - o.min_lr) * (1.0 + std::cos(3.14159265358979323846 * p)) / 2.0;
    case LrSchedule::linear:
      return o.lr + (o.min_lr - o.lr) * p;
    case LrSchedule::constant:
      return o.lr;
    case LrSchedule::wsd: {
      const int64_t stable_end = steps - o.decay;
      if (step <= stable_end || o.decay == 0) return o.lr;
      return o.lr + (o.min_lr - o.lr) * static_cast<double>(step - stable_end) /
                        static_cast<double>(o.decay);
    }
  }
  return o.lr;
}

}  // namespace spillway
