#include "data/shuffle.h"

#include <bit>

#include "base/philox.h"

namespace spillway {
namespace {

constexpr int kRounds = 8;

// One pass of an unbalanced Feistel network over `bits` bits. The halves swap sizes every round, so
// the domain is the exact power of two and fewer than half of its values lie outside [0, n).
uint64_t feistel(uint64_t x, int bits, uint64_t seed, uint64_t epoch) {
  int low_bits = bits / 2, high_bits = bits - low_bits;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t low = x & ((uint64_t{1} << low_bits) - 1);
    const uint64_t high = x >> low_bits;
    // Philox is keyed by the seed; its counter holds the epoch and (round, half), all disjoint.
    const auto r = philox(seed, low | (uint64_t(round) << 56), epoch);
    const uint64_t word = r[0] | (uint64_t{r[1]} << 32);
    const uint64_t mixed = (high ^ word) & ((uint64_t{1} << high_bits) - 1);
    x = (low << high_bits) | mixed;
    const int swap = low_bits;
    low_bits = high_bits;
    high_bits = swap;
  }
  return x;
}

}  // namespace

uint64_t shuffled(uint64_t index, uint64_t n, uint64_t seed, uint64_t epoch) {
  if (n < 2) return 0;
  const int bits = std::bit_width(n - 1);
  uint64_t x = index;
  do {
    x = feistel(x, bits, seed, epoch);
  } while (x >= n);
  return x;
}

}  // namespace spillway
