// bias_grad: column sums, runs of rows into the workspace and then the runs (row_runs.h). Bound by
// bytes: 2 an element in bf16, and 4 for each run of at least 64 rows. Designed for 80 % of the
// bandwidth: a thread owns a pack of columns and has four rows under way, 64 bytes; 512 threads a
// multiprocessor (8192 rows of 4096: 512 blocks of 128) keep 32 KB in flight where 15 KB are
// needed.
#include <device_port.cuh>

#include "graph/ops/row_blocks.h"
#include "kernels/cuda/row_runs.h"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/cuda/workspace.h"

namespace spillway::cuda {
namespace {

constexpr int kThreads = 128;

// Block (x, y): the x-th run of rows, the y-th run of kThreads packs of columns.
template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads)
    bias_grad_kernel(const T* dy, int64_t rows, int64_t step, int64_t width, float* partial) {
  const int64_t at = (int64_t{blockIdx.y} * kThreads + static_cast<int>(threadIdx.x)) * kPack<T>;
  const int64_t live = live_in_row<T, kVector>(width, at), begin = int64_t{blockIdx.x} * step;
  if (at >= width) return;
  const int64_t end = begin + step < rows ? begin + step : rows;
  Floats<kPack<T>> sum = zeros<T>();
#pragma unroll 4
  for (int64_t row = begin; row < end; ++row) {
    const Floats<kPack<T>> d = widen(load_pack<kVector>(dy + row * width + at, live));
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) sum.v[i] += d.v[i];
  }
  store_floats<kVector, kPack<T>>(partial + blockIdx.x * width + at, sum, live);
}

template <class T>
void run(const KernelArgs& args, cudaStream_t stream) {
  const T* dy = args.in[0].as<T>();
  const int64_t rows = args.in[0].dims.rows(), width = args.in[0].dims.last();
  const RowRuns runs = bias_runs(rows);
  float* partial = Workspace("bias_grad", args).take_array<float>(runs.count * width);
  const bool vector = width % kPack<T> == 0 && on_16_bytes({dy});
  if (runs.count > 0) {
    dim3 grid = blocks_for(runs.count, 1);
    grid.y = blocks_for(ceil_div(width, kPack<T>), kThreads).x;
    launch(vector ? bias_grad_kernel<T, true> : bias_grad_kernel<T, false>, grid, dim3(kThreads), 0,
           stream, dy, rows, runs.step, width, partial);
  }
  sum_runs(partial, runs.count, width, width, args.accumulate, args.out[0].as<float>(), stream);
}

}  // namespace

void bias_grad(const KernelArgs& args, const LaunchContext& context) {
  args.in[0].dtype == Dtype::bf16 ? run<Bf16>(args, context.stream)
                                  : run<float>(args, context.stream);
}

}  // namespace spillway::cuda
