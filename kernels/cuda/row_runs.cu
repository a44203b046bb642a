// The last step of sums over rows. Bound by bytes, but few: at most 256 runs a column (1024 where a
// row is two heads), a sixteenth of what the first step reads. A block owns 32 columns, a lane
// each, and its 16 warps every sixteenth run, so a warp's row is 128 bytes and a thread has 8
// independent loads in flight: 16·32·8·4 = 16 KB a block, 4 blocks (32 registers) a multiprocessor,
// where 15 KB are needed.
#include "kernels/cuda/row_runs.h"
#include "kernels/cuda/vector_access.cuh"

namespace spillway::cuda {
namespace {

constexpr int kColumns = 32, kWarps = 16;

__global__ void __launch_bounds__(kColumns* kWarps, 4)
    sum_runs_kernel(const float* partial, int64_t runs, int64_t stride, int64_t width,
                    bool accumulate, float* out) {
  __shared__ float sums[kWarps][kColumns];
  const int lane = threadIdx.x % kColumns, warp = threadIdx.x / kColumns;
  const int64_t column = int64_t{blockIdx.x} * kColumns + lane;
  float sum = 0;
  if (column < width) {
#pragma unroll 8
    for (int64_t run = warp; run < runs; run += kWarps) sum += partial[run * stride + column];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= width) return;
#pragma unroll
  for (int w = 1; w < kWarps; ++w) sum += sums[w][lane];
  out[column] = accumulate ? out[column] + sum : sum;
}

}  // namespace

void sum_runs(const float* partial, int64_t runs, int64_t stride, int64_t width, bool accumulate,
              float* out, cudaStream_t stream) {
  if (width == 0) return;
  launch(sum_runs_kernel, blocks_for(width, kColumns), dim3(kColumns * kWarps), 0, stream, partial,
         runs, stride, width, accumulate, out);
}

}  // namespace spillway::cuda
