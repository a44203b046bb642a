// `train bench predict`: how well the planner's model of a machine holds on that machine.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace spillway {

// `cases` random models of both families, tokens a step, link speeds of 0.25 to 2 GB/s and device
// budgets between the least that works and all resident, drawn from `seed`; of each the planned
// step beside the median of `repeat` measured ones, cases taking turns. The profile, threads and
// data are `config`'s; the profile should be one that `train calibrate` measured with as many
// threads. Every plan's step is compared with the same run all resident as well, and every other
// plan has at most 60 % of its memory. Prints a row a case, what each kind of op was predicted to
// take and took, and the summary: errors, and steps by all resident or by the bound.
void bench_predict(const Config& config, int threads, int64_t cases, int64_t repeat, uint64_t seed);

}  // namespace spillway
