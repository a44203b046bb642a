// head_loss and head_loss_grad: chunk by chunk of rows, so that no more logits exist than one
// chunk's. GEMMs (gemm.h) make the logits and take their gradient further; between them, one block
// walks one row of the f32 logits.
//
// The rows are bound by bytes. The loss reads each logit once (online softmax: a running maximum
// and a sum that is rescaled when it grows), 4 bytes. The gradient reads a row twice and writes it,
// in place in f32 or 2 bytes a logit in bf16: 12 or 10 bytes, less the second read where the rows
// that are under way fit into L2 (four on each of 132 multiprocessors in 50 MB: up to 24k columns).
// Designed for 80 % of the bandwidth: 512 threads of at most 32 registers, so 4 blocks and all 2048
// threads of a multiprocessor, whose 16-byte loads are 32 KB in flight; 3.35 TB/s over 600 ns of
// latency need 15 KB. No shared memory but the sums of 16 warps.
//
// Every sum has the order of the fixed block: strided by thread, then a tree over lanes and warps.
#include <algorithm>
#include <cmath>
#include <device_port.cuh>

#include "kernels/cuda/context.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/cuda/workspace.h"

namespace spillway::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;

// A maximum, and the sum of exp(x − maximum) over the x it stands for.
struct Softmax {
  float most, sum;
};

// Nothing yet (−inf and 0) joins as nothing; NaN stays in the sum.
__device__ Softmax joined(Softmax a, Softmax b) {
  const float most = fmaxf(a.most, b.most);
  if (most == -INFINITY) return {most, a.sum + b.sum};
  return {most, a.sum * expf(a.most - most) + b.sum * expf(b.most - most)};
}

__device__ Softmax from_lane(Softmax s, int lane_mask) {
  return {__shfl_xor_sync(kAllLanes, s.most, lane_mask),
          __shfl_xor_sync(kAllLanes, s.sum, lane_mask)};
}

// Of all threads of the block, on every thread. All lanes of a warp join the same pairs, and
// `joined` is symmetric, so they hold the same bits.
__device__ Softmax of_block(Softmax own) {
  __shared__ Softmax warps[kWarps];
  for (int mask = 16; mask > 0; mask /= 2) own = joined(own, from_lane(own, mask));
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = own;
  __syncthreads();
  Softmax all = warps[threadIdx.x % kWarps];
  for (int mask = kWarps / 2; mask > 0; mask /= 2) all = joined(all, from_lane(all, mask));
  return all;
}

// Four elements a thread and turn, 16 bytes of logits where rows begin on 16 bytes (kVector).
constexpr int kTurn = kThreads * 4;

template <bool kVector>
__device__ void store_four(float* p, const Floats<4>& f, int live) {
  store_floats<kVector, 4>(p, f, live);
}
template <bool kVector>
__device__ void store_four(Bf16* p, const Floats<4>& f, int live) {
  if (kVector && live >= 4) {
    *reinterpret_cast<uint2*>(p) =
        make_uint2(narrow_pair(f.v[0], f.v[1]), narrow_pair(f.v[2], f.v[3]));
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j)
    if (j < live) put(p + j, f.v[j]);
}

template <bool kVector>
__device__ Softmax softmax_of_row(const float* row, int vocab) {
  Softmax own = {-INFINITY, 0};
  for (int i = threadIdx.x * 4; i < vocab; i += kTurn) {
    const Floats<4> x = load_floats<kVector, 4>(row + i, vocab - i);
    float most = own.most;
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (i + j < vocab) most = fmaxf(most, x.v[j]);
    if (most > own.most) own.sum *= expf(own.most - most);
    own.most = most;
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (i + j < vocab) own.sum += expf(x.v[j] - most);
  }
  return of_block(own);
}

__device__ double nll_of(Softmax all, float wanted) {
  return static_cast<double>(all.most) + log(static_cast<double>(all.sum)) -
         static_cast<double>(wanted);
}

// nll[row] of rows of `padded` logits, of which `vocab` are live; 0 without a target.
template <bool kVector>
__global__ void __launch_bounds__(kThreads, 4)
    loss_rows(const float* logits, const int32_t* targets, int vocab, int padded, double* nll) {
  const float* row = logits + int64_t{blockIdx.x} * padded;
  const int target = targets[blockIdx.x];
  if (target < 0) {
    if (threadIdx.x == 0) nll[blockIdx.x] = 0;
    return;
  }
  const Softmax all = softmax_of_row<kVector>(row, vocab);
  if (threadIdx.x == 0) nll[blockIdx.x] = nll_of(all, row[target]);
}

// The same, and the logits' gradient: scale·(softmax − onehot), zero in the padding. `gradient` may
// be the logits themselves: a thread writes only what it alone reads, after all have read the
// target.
template <bool kVector, class T>
__global__ void __launch_bounds__(kThreads, 4)
    loss_grad_rows(const float* logits, const int32_t* targets, int vocab, int padded, float scale,
                   double* nll, T* gradient) {
  const float* row = logits + int64_t{blockIdx.x} * padded;
  T* d = gradient + int64_t{blockIdx.x} * padded;
  const int target = targets[blockIdx.x];
  if (target < 0) {
    for (int i = threadIdx.x * 4; i < padded; i += kTurn)
      store_four<kVector>(d + i, Floats<4>{}, padded - i);
    if (threadIdx.x == 0) nll[blockIdx.x] = 0;
    return;
  }
  if (threadIdx.x == 0) nll[blockIdx.x] = -static_cast<double>(row[target]);
  const Softmax all = softmax_of_row<kVector>(row, vocab);  // has a barrier behind the line above
  if (threadIdx.x == 0) nll[blockIdx.x] += nll_of(all, 0);
  const float factor = scale / all.sum;
  for (int i = threadIdx.x * 4; i < padded; i += kTurn) {
    Floats<4> x = load_floats<kVector, 4>(row + i, padded - i);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float share = i + j < vocab ? expf(x.v[j] - all.most) * factor : 0;
      x.v[j] = i + j == target ? share - scale : share;
    }
    store_four<kVector>(d + i, x, padded - i);
  }
}

// *loss = scale · Σ nll, in f64.
__global__ void __launch_bounds__(kThreads)
    sum_rows(const double* nll, int64_t rows, double scale, double* loss) {
  __shared__ double warps[32];
  double own = 0;
  for (int64_t r = threadIdx.x; r < rows; r += kThreads) own += nll[r];
  const double total = block_sum(own, warps);
  if (threadIdx.x == 0) *loss = scale * total;
}

void head(const KernelArgs& args, const LaunchContext& context, const char* op, bool gradient) {
  const TensorArg &x = args.in[0], &w = args.in[1];
  const Attrs& attrs = *args.attrs;
  const int64_t rows = x.dims[0], h = x.dims[1], v = w.dims[0];
  const int64_t chunk = std::min<int64_t>(attrs.chunk, rows);
  const bool narrow = gradient && x.dtype != Dtype::f32;
  const int padded = static_cast<int>(v);
  const bool vector = v % 4 == 0;  // the chunk itself begins on 256 bytes
  cudaStream_t stream = context.stream;

  Workspace workspace(op, args);
  double* nll = workspace.take_array<double>(rows);
  float* logits = workspace.take_array<float>(chunk * v);
  Bf16* rounded = narrow ? workspace.take_array<Bf16>(chunk * v) : nullptr;
  void* dlogits = narrow ? static_cast<void*>(rounded) : logits;
  void* scratch = workspace.take(context.gemm->workspace_bytes());

  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t count = std::min(chunk, rows - begin);
    const char* from = x.as<char>() + begin * h * size_of(x.dtype);
    const int32_t* targets = args.in[2].as<int32_t>() + begin;
    context.gemm->run({.m = count,
                       .n = v,
                       .k = h,
                       .dtype = x.dtype,
                       .a = from,
                       .b = w.data,
                       .b_transposed = true,
                       .c = logits,
                       .c_dtype = Dtype::f32,
                       .workspace = scratch},
                      stream);
    const dim3 grid(static_cast<unsigned>(count)), block(kThreads);
    if (!gradient) {
      launch(vector ? loss_rows<true> : loss_rows<false>, grid, block, 0, stream, logits, targets,
             attrs.vocab, padded, nll + begin);
      continue;
    }
    if (narrow)
      launch(vector ? loss_grad_rows<true, Bf16> : loss_grad_rows<false, Bf16>, grid, block, 0,
             stream, logits, targets, attrs.vocab, padded, attrs.loss_scale, nll + begin, rounded);
    else
      launch(vector ? loss_grad_rows<true, float> : loss_grad_rows<false, float>, grid, block, 0,
             stream, logits, targets, attrs.vocab, padded, attrs.loss_scale, nll + begin, logits);
    context.gemm->run({.m = count,
                       .n = h,
                       .k = v,
                       .dtype = x.dtype,
                       .a = dlogits,
                       .b = w.data,
                       .c = args.out[0].as<char>() + begin * h * size_of(x.dtype),
                       .c_dtype = x.dtype,
                       .workspace = scratch},
                      stream);
    context.gemm->run({.m = v,
                       .n = h,
                       .k = count,
                       .dtype = x.dtype,
                       .a = dlogits,
                       .a_transposed = true,
                       .b = from,
                       .c = args.out[1].data,
                       .c_dtype = Dtype::f32,
                       .accumulate = args.accumulate || begin > 0,
                       .workspace = scratch},
                      stream);
  }
  launch(sum_rows, dim3(1), dim3(kThreads), 0, stream, nll, rows,
         static_cast<double>(attrs.loss_scale),
         args.out[gradient ? 2 : 0].as<double>() + args.micro);
}

}  // namespace

void head_loss(const KernelArgs& args, const LaunchContext& context) {
  head(args, context, "head_loss", false);
}
void head_loss_grad(const KernelArgs& args, const LaunchContext& context) {
  head(args, context, "head_loss_grad", true);
}

}  // namespace spillway::cuda
