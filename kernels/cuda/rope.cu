// rope and rope_grad. A first kernel tabulates cosines and sines of the positions in f64 (half a
// million for 8192 positions of 128: 5 µs), the second rotates.
//
// Bound by bytes: 4 an element of q and k in bf16, in place. Designed for 80 % of the bandwidth: a
// thread has a pack of both halves of a head, 32 bytes; at 48 registers 1280 threads of a
// multiprocessor keep 40 KB in flight (15 KB are needed). The table's row is read by every head of
// the token from the first-level cache.
//
// With the norm of queries and keys a warp has a head, each lane elements lane, lane + 32, … of
// both halves: 4 bytes a lane and half of 128 in bf16, 16 KB in flight a multiprocessor; designed
// for 60 %. Backward reads the head before rotation as well, and a block sums the norm weights'
// gradients over a run of rows, which row_runs.h then adds up.
#include <device_port.cuh>

#include "graph/ops/rope_frequency.h"
#include "graph/ops/row_blocks.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rope_head.h"
#include "kernels/cuda/row_runs.h"
#include "kernels/cuda/sampling.h"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/cuda/workspace.h"

namespace spillway::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxHalf = 64;           // of a head
constexpr int kHeadWarps = 8;          // of a block of the kernels with norm
constexpr int kPairs = kMaxHalf / 32;  // of a lane, there

struct Frequencies {
  double f[kMaxHalf];  // radians a token
};

// table[position] = half cosines, then half sines.
__global__ void __launch_bounds__(kThreads)
    table_kernel(Frequencies frequencies, int64_t positions, int half, float* table) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + static_cast<int>(threadIdx.x);
  if (index >= positions * half) return;
  const int64_t position = index / half;
  const int i = static_cast<int>(index % half);
  double sine, cosine;
  sincos(static_cast<double>(position) * frequencies.f[i], &sine, &cosine);
  table[position * 2 * half + i] = static_cast<float>(cosine);
  table[position * 2 * half + half + i] = static_cast<float>(sine);
}

// Rows of `width` elements begin with `heads` heads to rotate; the rest (v) is copied, unless `out`
// is `in`. x, qw, kw, partial: with the norm only.
template <class T>
struct RopeArgs {
  const T* in;
  const T* x;  // gradient: the heads before norm and rotation
  const float* qw;
  const float* kw;
  const float* table;
  T* out;
  float* partial;  // gradient: [runs, 4·half], of qw and kw
  int64_t rows, step, context, width;
  int heads, q_heads, half;
  float eps;
};

template <bool kGradient>
__device__ __forceinline__ void rotate(float& a, float& b, float cosine, float sine) {
  const float first = a, second = b, turn = kGradient ? -sine : sine;
  a = fmaf(first, cosine, -(second * turn));
  b = fmaf(second, cosine, first * turn);
}

// A block has a row.
template <class T, bool kGradient, bool kVector>
__global__ void __launch_bounds__(kThreads) rope_kernel(RopeArgs<T> a) {
  constexpr int kCount = kPack<T>;
  const int64_t row = blockIdx.x;
  const int half = a.half, packs = (half + kCount - 1) / kCount, turned = a.heads * packs;
  const int rotated = a.heads * 2 * half, rest = static_cast<int>(a.width) - rotated;
  const int copied = a.in == a.out ? 0 : (rest + kCount - 1) / kCount;
  const float* cosines = a.table + row % a.context * 2 * half;
  const T* in = a.in + row * a.width;
  T* out = a.out + row * a.width;
  for (int item = threadIdx.x; item < turned + copied; item += kThreads) {
    if (item >= turned) {
      const int at = (item - turned) * kCount;
      const int64_t live = live_in_row<T, kVector>(rest, at);
      store_pack<kVector>(out + rotated + at, load_pack<kVector>(in + rotated + at, live), live);
      continue;
    }
    const int i = item % packs * kCount, at = item / packs * 2 * half + i;
    const int64_t live = live_in_row<T, kVector>(half, i);
    Floats<kCount> x = widen(load_pack<kVector>(in + at, live));
    Floats<kCount> y = widen(load_pack<kVector>(in + at + half, live));
    const Floats<kCount> cosine = load_floats<kVector, kCount>(cosines + i, live);
    const Floats<kCount> sine = load_floats<kVector, kCount>(cosines + half + i, live);
#pragma unroll
    for (int e = 0; e < kCount; ++e) rotate<kGradient>(x.v[e], y.v[e], cosine.v[e], sine.v[e]);
    store_pack<kVector>(out + at, narrowed<T>(x), live);
    store_pack<kVector>(out + at + half, narrowed<T>(y), live);
  }
}

// A lane's elements of a head or of one of its weights: lane, lane + 32, … of both halves; zero
// beyond.
struct HeadPart {
  float a[kPairs], b[kPairs];
};
template <class T>
__device__ __forceinline__ HeadPart head_part(const T* head, int half) {
  HeadPart part;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int i = static_cast<int>(threadIdx.x % 32) + 32 * j;
    part.a[j] = i < half ? element(head + i) : 0.0f;
    part.b[j] = i < half ? element(head + half + i) : 0.0f;
  }
  return part;
}
template <class T>
__device__ __forceinline__ void store_head(T* head, const HeadPart& part, int half) {
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int i = static_cast<int>(threadIdx.x % 32) + 32 * j;
    if (i >= half) continue;
    put(head + i, part.a[j]);
    put(head + half + i, part.b[j]);
  }
}
template <bool kGradient>
__device__ __forceinline__ void rotate(HeadPart& x, const float* cosines, int half) {
  const HeadPart angles = head_part(cosines, half);  // cosines, then sines
#pragma unroll
  for (int j = 0; j < kPairs; ++j) rotate<kGradient>(x.a[j], x.b[j], angles.a[j], angles.b[j]);
}
// body(value of x, value of y, value of z) for each element.
template <class Body>
__device__ __forceinline__ void each_element(HeadPart& x, const HeadPart& y, HeadPart& z,
                                             const Body& body) {
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    body(x.a[j], y.a[j], z.a[j]);
    body(x.b[j], y.b[j], z.b[j]);
  }
}

__device__ __forceinline__ float inverse_rms(const HeadPart& x, int half, float eps) {
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    squares = fmaf(x.a[j], x.a[j], squares);
    squares = fmaf(x.b[j], x.b[j], squares);
  }
  const float mean = warp_sum(squares) * (1.0f / static_cast<float>(2 * half));
  return __fdiv_rn(1.0f, __fsqrt_rn(mean + eps));
}

template <class T>
__device__ __forceinline__ void copy_rest(const RopeArgs<T>& a, int64_t row) {
  if (a.in == a.out) return;
  for (int64_t i = a.heads * 2 * a.half + static_cast<int>(threadIdx.x); i < a.width;
       i += 32 * kHeadWarps)
    a.out[row * a.width + i] = a.in[row * a.width + i];
}

// A block has a row, a warp every eighth head of it.
template <class T>
__global__ void __launch_bounds__(32 * kHeadWarps) normed_rope_kernel(RopeArgs<T> a) {
  const int64_t row = blockIdx.x;
  for (int head = threadIdx.x / 32; head < a.heads; head += kHeadWarps) {
    const int64_t at = row * a.width + head * 2 * a.half;
    HeadPart x = head_part(a.in + at, a.half);
    HeadPart w = head_part(head < a.q_heads ? a.qw : a.kw, a.half);
    const float rstd = inverse_rms(x, a.half, a.eps);
    each_element(x, x, w, [&](float& to, float, float weight) { to = to * rstd * weight; });
    rotate<false>(x, a.table + row % a.context * 2 * a.half, a.half);
    store_head(a.out + at, x, a.half);
  }
  copy_rest(a, row);
}

// A block has a run of rows, a warp every eighth of their heads, in order.
template <class T>
__global__ void __launch_bounds__(32 * kHeadWarps) normed_rope_grad_kernel(RopeArgs<T> a) {
  __shared__ float sums[kHeadWarps][4 * kMaxHalf];
  const int half = a.half, warp = threadIdx.x / 32;
  const int64_t begin = int64_t{blockIdx.x} * a.step;
  const int64_t end = begin + a.step < a.rows ? begin + a.step : a.rows;
  HeadPart dqw{}, dkw{};
  for (int64_t item = warp; item < (end - begin) * a.heads; item += kHeadWarps) {
    const int64_t row = begin + item / a.heads;
    const int head = static_cast<int>(item % a.heads);
    const bool query = head < a.q_heads;
    const int64_t at = row * a.width + head * 2 * half;
    HeadPart x = head_part(a.x + at, half), g = head_part(a.in + at, half);
    HeadPart w = head_part(query ? a.qw : a.kw, half);
    rotate<true>(g, a.table + row % a.context * 2 * half, half);
    const float rstd = inverse_rms(x, half, a.eps);
    each_element(x, x, x, [&](float& xhat, float, float) { xhat *= rstd; });
    // Not by a reference to either, which would put both into memory.
    const auto add = [](float& dw, float d, float xhat) { dw = fmaf(d, xhat, dw); };
    if (query)
      each_element(dqw, g, x, add);
    else
      each_element(dkw, g, x, add);
    each_element(g, w, x, [](float& d, float weight, float) { d *= weight; });
    float dot = 0;
    each_element(g, x, x, [&](float d, float xhat, float) { dot = fmaf(d, xhat, dot); });
    const float mean = warp_sum(dot) * (1.0f / static_cast<float>(2 * half));
    each_element(g, x, x, [&](float& d, float xhat, float) { d = rstd * fmaf(-mean, xhat, d); });
    store_head(a.out + at, g, half);
  }
  for (int64_t row = begin; row < end; ++row) copy_rest(a, row);
  store_head(sums[warp], dqw, half);
  store_head(sums[warp] + 2 * half, dkw, half);
  __syncthreads();
  const int column = threadIdx.x;
  if (column >= 4 * half) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kHeadWarps; ++w) sum += sums[w][column];
  a.partial[int64_t{blockIdx.x} * 4 * half + column] = sum;
}

// Fills in what both directions share, the table included.
template <class T>
RopeArgs<T> rope_args(const KernelArgs& args, Workspace& workspace, cudaStream_t stream) {
  const Attrs& attrs = *args.attrs;
  check_rotary_head(attrs, 2 * kMaxHalf);
  RopeArgs<T> a{};
  a.in = args.in[0].as<T>();
  a.out = args.out[0].as<T>();
  a.rows = args.in[0].dims[0];
  a.width = args.in[0].dims[1];
  a.context = attrs.context;
  a.heads = attrs.heads + attrs.kv_heads;
  a.q_heads = attrs.heads;
  a.half = attrs.head_dim / 2;
  a.eps = attrs.eps;
  Frequencies frequencies{};
  for (int i = 0; i < a.half; ++i) frequencies.f[i] = rope_frequency(attrs, i);
  const int64_t positions = a.rows < a.context ? a.rows : a.context;
  float* table = workspace.take_array<float>(positions * attrs.head_dim);
  a.table = table;
  if (positions > 0)
    launch(table_kernel, blocks_for(positions * a.half, kThreads), dim3(kThreads), 0, stream,
           frequencies, positions, a.half, table);
  return a;
}

template <class T, bool kGradient>
void rotate_rows(const RopeArgs<T>& a, cudaStream_t stream) {
  const bool vector =
      a.half % kPack<T> == 0 && a.width % kPack<T> == 0 && on_16_bytes({a.in, a.out});
  launch(vector ? rope_kernel<T, kGradient, true> : rope_kernel<T, kGradient, false>,
         blocks_for(a.rows, 1), dim3(kThreads), 0, stream, a);
}

template <class T>
void forward(const KernelArgs& args, cudaStream_t stream) {
  Workspace workspace("rope", args);
  RopeArgs<T> a = rope_args<T>(args, workspace, stream);
  if (a.rows == 0) return;
  if (!args.attrs->qk_norm) return rotate_rows<T, false>(a, stream);
  a.qw = args.in[1].as<float>();
  a.kw = args.in[2].as<float>();
  launch(normed_rope_kernel<T>, blocks_for(a.rows, 1), dim3(32 * kHeadWarps), 0, stream, a);
}

template <class T>
void backward(const KernelArgs& args, cudaStream_t stream) {
  Workspace workspace("rope_grad", args);
  RopeArgs<T> a = rope_args<T>(args, workspace, stream);
  if (!args.attrs->qk_norm) {
    if (a.rows > 0) rotate_rows<T, true>(a, stream);
    return;
  }
  const RowRuns runs = qk_norm_runs(a.rows);
  const int64_t size = args.attrs->head_dim;
  a.x = args.in[1].as<T>();
  a.qw = args.in[2].as<float>();
  a.kw = args.in[3].as<float>();
  a.step = runs.step;
  a.partial = workspace.take_array<float>(runs.count * 2 * size);
  if (runs.count > 0)
    launch(normed_rope_grad_kernel<T>, blocks_for(runs.count, 1), dim3(32 * kHeadWarps), 0, stream,
           a);
  sum_runs(a.partial, runs.count, 2 * size, size, args.accumulate, args.out[1].as<float>(), stream);
  sum_runs(a.partial + size, runs.count, 2 * size, size, args.accumulate, args.out[2].as<float>(),
           stream);
}

}  // namespace

void rope(const KernelArgs& args, const LaunchContext& context) {
  refuse_decoding(*args.attrs);
  args.in[0].dtype == Dtype::bf16 ? forward<Bf16>(args, context.stream)
                                  : forward<float>(args, context.stream);
}
void rope_grad(const KernelArgs& args, const LaunchContext& context) {
  args.in[0].dtype == Dtype::bf16 ? backward<Bf16>(args, context.stream)
                                  : backward<float>(args, context.stream);
}

}  // namespace spillway::cuda
