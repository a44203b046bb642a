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
#include <cuda_bf16.h>

#include <cmath>
#include <device_port.cuh>

#include "kernels/cuda/context.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/table.h"
#include "kernels/cuda/workspace.h"

namespace spillway::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr unsigned kAll = 0xffffffffu;

// A maximum, and the sum of exp(x − maximum) over the x it stands for.
struct Softmax {
  float most = -INFINITY, sum = 0;
};

// Nothing yet (−inf and 0) joins as nothing; NaN stays in the sum.
__device__ Softmax joined(Softmax a, Softmax b) {
  const float most = fmaxf(a.most, b.most);
  if (most == -INFINITY) return {most, a.sum + b.sum};
  return {most, a.sum * expf(a.most - most) + b.sum * expf(b.most - most)};
}

__device__ Softmax from_lane(Softmax s, int lane_mask) {
  return {__shfl_xor_sync(kAll, s.most, lane_mask), __shfl_xor_sync(kAll, s.sum, lane_mask)};
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

// The row's elements from thread to thread: kWide at a time while whole groups are live.
template <int kWide>
struct Group {
  float x[kWide];
};
template <int kWide>
__device__ Group<kWide> load(const float* row, int64_t i) {
  if constexpr (kWide == 4) {
    const float4 v = *reinterpret_cast<const float4*>(row + i);
    return {{v.x, v.y, v.z, v.w}};
  } else {
    return {{row[i]}};
  }
}
template <int kWide>
__device__ void store(float* row, int64_t i, const Group<kWide>& g) {
  if constexpr (kWide == 4) {
    *reinterpret_cast<float4*>(row + i) = make_float4(g.x[0], g.x[1], g.x[2], g.x[3]);
  } else {
    row[i] = g.x[0];
  }
}
template <int kWide>
__device__ void store(__nv_bfloat16* row, int64_t i, const Group<kWide>& g) {
  if constexpr (kWide == 4) {
    __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(g.x[0], g.x[1]),
                               __floats2bfloat162_rn(g.x[2], g.x[3])};
    uint2 bits;
    memcpy(&bits, pairs, sizeof bits);
    *reinterpret_cast<uint2*>(row + i) = bits;
  } else {
    row[i] = __float2bfloat16_rn(g.x[0]);
  }
}

template <int kWide>
__device__ Softmax softmax_of_row(const float* row, int vocab) {
  Softmax own;
  for (int i = threadIdx.x * kWide; i < vocab; i += kThreads * kWide) {
    const Group<kWide> g = load<kWide>(row, i);
    float most = own.most;
    for (int j = 0; j < kWide; ++j)
      if (i + j < vocab) most = fmaxf(most, g.x[j]);
    if (most > own.most) own.sum *= expf(own.most - most);
    own.most = most;
    for (int j = 0; j < kWide; ++j)
      if (i + j < vocab) own.sum += expf(g.x[j] - most);
  }
  return of_block(own);
}

__device__ double nll_of(Softmax all, float wanted) {
  return static_cast<double>(all.most) + log(static_cast<double>(all.sum)) -
         static_cast<double>(wanted);
}

// nll[row] of rows of `padded` logits, of which `vocab` are live; 0 without a target.
template <int kWide>
__global__ void __launch_bounds__(kThreads, 4)
    loss_rows(const float* logits, const int32_t* targets, int vocab, int padded, double* nll) {
  const float* row = logits + int64_t{blockIdx.x} * padded;
  const int target = targets[blockIdx.x];
  if (target < 0) {
    if (threadIdx.x == 0) nll[blockIdx.x] = 0;
    return;
  }
  const Softmax all = softmax_of_row<kWide>(row, vocab);
  if (threadIdx.x == 0) nll[blockIdx.x] = nll_of(all, row[target]);
}

// The same, and the logits' gradient: scale·(softmax − onehot), zero in the padding. `gradient` may
// be the logits themselves: a thread writes only what it alone reads, after all have read the
// target.
template <int kWide, class T>
__global__ void __launch_bounds__(kThreads, 4)
    loss_grad_rows(const float* logits, const int32_t* targets, int vocab, int padded, float scale,
                   double* nll, T* gradient) {
  const float* row = logits + int64_t{blockIdx.x} * padded;
  T* d = gradient + int64_t{blockIdx.x} * padded;
  const int target = targets[blockIdx.x];
  if (target < 0) {
    for (int i = threadIdx.x * kWide; i < padded; i += kThreads * kWide)
      store<kWide>(d, i, Group<kWide>{});
    if (threadIdx.x == 0) nll[blockIdx.x] = 0;
    return;
  }
  if (threadIdx.x == 0) nll[blockIdx.x] = -static_cast<double>(row[target]);
  const Softmax all = softmax_of_row<kWide>(row, vocab);  // has a barrier behind the line above
  if (threadIdx.x == 0) nll[blockIdx.x] += nll_of(all, 0);
  const float factor = scale / all.sum;
  for (int i = threadIdx.x * kWide; i < padded; i += kThreads * kWide) {
    Group<kWide> g = load<kWide>(row, i);
    for (int j = 0; j < kWide; ++j) {
      float value = i + j < vocab ? expf(g.x[j] - all.most) * factor : 0;
      if (i + j == target) value -= scale;
      g.x[j] = value;
    }
    store<kWide>(d, i, g);
  }
}

// *loss = scale · Σ nll, in f64.
__global__ void __launch_bounds__(kThreads)
    sum_rows(const double* nll, int64_t rows, double scale, double* loss) {
  __shared__ double warps[kWarps];
  double own = 0;
  for (int64_t r = threadIdx.x; r < rows; r += kThreads) own += nll[r];
  for (int mask = 16; mask > 0; mask /= 2) own += __shfl_xor_sync(kAll, own, mask);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x > 0) return;
  double total = 0;
  for (const double warp : warps) total += warp;
  *loss = scale * total;
}

// Whole groups of four lie on 16 bytes in every row: the chunk begins at a multiple of 256.
bool wide(int64_t padded) { return padded % 4 == 0; }

void head(const KernelArgs& args, const LaunchContext& context, const char* op, bool gradient) {
  const TensorArg &x = args.in[0], &w = args.in[1];
  const Attrs& attrs = *args.attrs;
  const int64_t rows = x.dims[0], h = x.dims[1], v = w.dims[0];
  const int64_t chunk = std::min<int64_t>(attrs.chunk, rows);
  const bool narrow = gradient && x.dtype != Dtype::f32;
  const int padded = static_cast<int>(v);
  cudaStream_t stream = context.stream;

  Workspace workspace(op, args);
  double* nll = workspace.take_array<double>(rows);
  float* logits = workspace.take_array<float>(chunk * v);
  __nv_bfloat16* rounded = narrow ? workspace.take_array<__nv_bfloat16>(chunk * v) : nullptr;
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
      launch(wide(v) ? loss_rows<4> : loss_rows<1>, grid, block, 0, stream, logits, targets,
             attrs.vocab, padded, nll + begin);
      continue;
    }
    if (narrow)
      launch(wide(v) ? loss_grad_rows<4, __nv_bfloat16> : loss_grad_rows<1, __nv_bfloat16>, grid,
             block, 0, stream, logits, targets, attrs.vocab, padded, attrs.loss_scale, nll + begin,
             rounded);
    else
      launch(wide(v) ? loss_grad_rows<4, float> : loss_grad_rows<1, float>, grid, block, 0, stream,
             logits, targets, attrs.vocab, padded, attrs.loss_scale, nll + begin, logits);
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
