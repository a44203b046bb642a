// Sums over rows in two steps: each run of consecutive rows into its own partial sums, then the
// runs. How rows are cut is a function of their number alone (graph/ops/row_blocks.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace spillway::cuda {

// out[i] = (accumulate ? out[i] : 0) + Σ_run partial[run·stride + i], i < width, by a fixed tree.
void sum_runs(const float* partial, int64_t runs, int64_t stride, int64_t width, bool accumulate,
              float* out, cudaStream_t stream);

}  // namespace spillway::cuda
