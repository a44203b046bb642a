// norm_partials and norm_finish (graph/ops/norm.h).
//
// norm_partials is bound by bytes, 4 an element. Designed for 85 % of the bandwidth: a block of 256
// threads sums a block of up to 65,536 elements in f64 (one FMA for every 4 bytes: an eighth of
// what the f64 units do), four 16-byte loads a thread in flight, 128 KB a multiprocessor of 2048
// threads.
//
// norm_finish adds the partial sums in their order, as every backend does, which makes it a chain
// of f64 additions: some 8 cycles each, 0.6 ms for the 122,000 of an 8B model. While one thread
// adds a tile from shared memory, the others bring the next.
#include <cmath>
#include <device_port.cuh>

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vector_access.cuh"

namespace spillway::cuda {
namespace {

constexpr int kThreads = 256;

template <bool kVector>
__global__ void __launch_bounds__(kThreads)
    norm_partials_kernel(const float* grad, int64_t count, int64_t block, double* partials) {
  __shared__ double sums[32];
  const int64_t begin = int64_t{blockIdx.x} * block;
  const int64_t size = count - begin < block ? count - begin : block;
  double sum = 0;
  const auto add = [&](int64_t at, int64_t live) {
    const Floats<4> g = load_floats<kVector, 4>(grad + begin + at, live);
#pragma unroll
    for (float f : g.v) {
      const double x = static_cast<double>(f);
      sum = fma(x, x, sum);
    }
  };
  int64_t at = int64_t{threadIdx.x} * 4;
#pragma unroll 4
  for (; at + 4 <= size; at += kThreads * 4) add(at, 4);
  if (at < size) add(at, size - at);
  sum = block_sum(sum, sums);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

constexpr int kTile = 1024;

// Σ values in order, on thread 0. `tiles` is shared; every thread of the block calls.
__device__ double sum_in_order(const double* values, int64_t count, double (*tiles)[kTile]) {
  double sum = 0;
  for (int i = threadIdx.x; i < kTile && i < count; i += kThreads) tiles[0][i] = values[i];
  for (int64_t first = 0, turn = 0; first < count; first += kTile, ++turn) {
    const int slot = static_cast<int>(turn % 2);
    __syncthreads();  // the tile is there, and the other one was added
    if (threadIdx.x >= 32) {
      for (int i = static_cast<int>(threadIdx.x) - 32; i < kTile; i += kThreads - 32)
        if (first + kTile + i < count) tiles[1 - slot][i] = values[first + kTile + i];
    } else if (threadIdx.x == 0) {
      const int live = count - first < kTile ? static_cast<int>(count - first) : kTile;
#pragma unroll 8
      for (int i = 0; i < live; ++i) sum += tiles[slot][i];
    }
  }
  __syncthreads();
  return sum;
}

__global__ void __launch_bounds__(kThreads)
    norm_finish_kernel(const double* partials, int64_t partial_count, const double* losses,
                       int64_t loss_count, double clip, const StepScalars* before,
                       StepScalars* after) {
  __shared__ double tiles[2][kTile];
  const double squares = sum_in_order(partials, partial_count, tiles);
  const double loss = sum_in_order(losses, loss_count, tiles);
  if (threadIdx.x > 0) return;
  StepScalars scalars = *before;
  scalars.norm = sqrt(squares);
  scalars.loss = loss;
  const double scale = clip > 0 ? clip / (scalars.norm + 1e-6) : 1.0;
  scalars.clip_scale = static_cast<float>(scale < 1 ? scale : 1.0);
  scalars.skip_update = std::isfinite(scalars.norm) && std::isfinite(loss) ? 0 : 1;
  *after = scalars;
}

}  // namespace

void norm_partials(const KernelArgs& args, const LaunchContext& context) {
  const float* grad = args.in[0].as<float>();
  const int64_t count = args.in[0].dims.count();
  const int64_t block = args.attrs->block < 1 ? 1 : args.attrs->block;
  if (count == 0) return;
  const bool vector = on_16_bytes({grad}) && block % 4 == 0;
  launch(vector ? norm_partials_kernel<true> : norm_partials_kernel<false>,
         blocks_for(count, block), dim3(kThreads), 0, context.stream, grad, count, block,
         args.out[0].as<double>());
}

void norm_finish(const KernelArgs& args, const LaunchContext& context) {
  launch(norm_finish_kernel, dim3(1), dim3(kThreads), 0, context.stream, args.in[0].as<double>(),
         args.in[0].dims.count(), args.in[1].as<double>(), args.in[1].dims.count(),
         static_cast<double>(args.attrs->clip), args.in[2].as<StepScalars>(),
         args.out[0].as<StepScalars>());
}

}  // namespace spillway::cuda
