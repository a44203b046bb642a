// How column sums over rows (gradients of norm weights and biases) are split: into at most
// kRowBlocks runs of consecutive rows whose partial sums are added in order. A function of the
// number of rows alone, so that threads do not change a bit.
#pragma once

#include "base/dtype.h"

namespace spillway {

constexpr int64_t kRowBlocks = 64;

// Workspace of f32 partials of `columns` sums, 64-byte aligned.
constexpr int64_t row_block_bytes(int64_t columns) {
  return round_up(kRowBlocks * columns * int64_t{4}, 64);
}

}  // namespace spillway
