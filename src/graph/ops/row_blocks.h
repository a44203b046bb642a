// How column sums over rows (gradients of norm weights and biases) are split: into at most
// kRowBlocks runs of consecutive rows whose partial sums are added in order. A function of the
// number of rows alone, so that threads do not change a bit.
#pragma once

#include "base/dtype.h"
#include "graph/ops/gemm_workspace.h"

namespace spillway {

constexpr int64_t kRowBlocks = 64;

// Workspace of f32 partials of `columns` sums, 64-byte aligned.
constexpr int64_t row_block_bytes(int64_t columns) {
  return round_up(kRowBlocks * columns * int64_t{4}, 64);
}

// On CUDA devices: runs of `step` rows, at least `least` of them so that partial sums are few bytes
// beside what is summed, at most `most` runs so that they are soon added up.
struct RowRuns {
  int64_t step, count;
};
constexpr RowRuns row_runs(int64_t rows, int64_t least, int64_t most) {
  const int64_t even = ceil_div(rows, most), step = even > least ? even : least;
  return {step, ceil_div(rows, step)};
}
constexpr RowRuns norm_runs(int64_t rows) { return row_runs(rows, 16, 256); }
constexpr RowRuns bias_runs(int64_t rows) { return row_runs(rows, 64, 128); }
constexpr RowRuns qk_norm_runs(int64_t rows) { return row_runs(rows, 1, 1024); }

// Their f32 partials of `columns` sums, as a part of a CUDA kernel's workspace.
constexpr int64_t row_run_bytes(RowRuns runs, int64_t columns) {
  return device_aligned(runs.count * columns * int64_t{4});
}

}  // namespace spillway
