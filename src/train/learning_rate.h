// Learning rate schedules. Steps count from 1; with W warm-up steps and S steps in all:
//   warm-up: lr · step / W for step ≤ W; then with p = (step - W) / (S - W) in (0, 1]:
//   cosine:   min_lr + (lr - min_lr) · (1 + cos(π p)) / 2
//   linear:   lr + (min_lr - lr) · p
//   constant: lr
//   wsd:      lr until the last `decay` steps, then linear to min_lr at step S
#pragma once

#include <cstdint>

#include "config/config.h"

namespace spillway {

double learning_rate(const OptimizerConfig& optimizer, int64_t step, int64_t steps);

}  // namespace spillway
