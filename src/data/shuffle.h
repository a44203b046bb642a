// A seeded permutation of [0, n) in constant memory: where a sample goes is computed, not stored.
#pragma once

#include <cstdint>

namespace spillway {

// The image of `index` (< n) under the permutation of [0, n) that (seed, epoch) names: a Feistel
// network over the smallest power of two ≥ n, walked until it lands inside. A pure function, the
// same on every machine. n ≥ 1.
uint64_t shuffled(uint64_t index, uint64_t n, uint64_t seed, uint64_t epoch);

}  // namespace spillway
