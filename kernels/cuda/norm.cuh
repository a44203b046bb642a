// rmsnorm and layernorm, forward and backward: one text for both, instantiated by rmsnorm.cu and
// layernorm.cu. Statistics and sums are f32.
//
// Bound by bytes. Forward: a block owns a row and holds it in registers between the sum and the
// result, so each byte moves once: x, delta, resid and y, 8 bytes an element in bf16 with a
// residual. Backward: x, dy, dresid and dx, 8 bytes an element, and the weights' partial sums, 4
// bytes an element and run of rows, written and read once (a sixteenth: runs of at least 16 rows).
//
// Designed for 85 % of the bandwidth in rows of 2048 elements and more. Forward: four 16-byte packs
// a thread and array, so a row of 4096 bf16 is 128 threads; at 48 registers a multiprocessor holds
// 10 blocks, with 10·128·4·16·2 bytes = 160 KB requested at once (3.35 TB/s over 600 ns of latency
// need 15 KB on each of 132). Backward: two packs a thread (one for layernorm, which has two sums a
// column), 256 threads; at 80 registers a multiprocessor holds 3 blocks, and at most 256 runs, two
// on each of 128 multiprocessors, are one wave with 2·256·2·16·2 = 32 KB in flight. Narrower rows,
// a warp each, stay near 16 KB and are bound by the latency of the sum over the row. Column sums of
// rows too wide for registers (over 16,384 bf16, layernorm 8,192; half as many f32) go through L2
// instead, 8 bytes an element each way: designed for 50 %.
#pragma once

#include <device_port.cuh>

#include "graph/ops/row_blocks.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/row_runs.h"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/cuda/workspace.h"

namespace spillway::cuda {

enum class NormKind { rms, layer };

// body(slot, pack) for the packs of a row that belong to this thread; kHold > 0: at most kHold of
// them, `slot` counts them and is a constant wherever it is used.
template <int kHold, class Body>
__device__ __forceinline__ void each_pack(int packs, const Body& body) {
  if constexpr (kHold > 0) {
#pragma unroll
    for (int slot = 0; slot < kHold; ++slot) {
      const int pack = static_cast<int>(threadIdx.x + slot * blockDim.x);
      if (pack < packs) body(slot, pack);
    }
  } else {
    for (int pack = threadIdx.x; pack < packs; pack += blockDim.x) body(0, pack);
  }
}

__device__ __forceinline__ float inverse_root(float x) { return __fdiv_rn(1.0f, __fsqrt_rn(x)); }

// Operands without data are null: delta without a residual, outputs that are not wanted.
template <class T>
struct NormArgs {
  const T* x;
  const T* delta;
  const float* w;
  const float* bias;
  T* resid;
  T* y;
  float* stats;
  int width;
  float eps;
};

template <class T, NormKind kKind, bool kVector, int kHold>
__global__ void __launch_bounds__(1024) norm_kernel(NormArgs<T> a) {
  constexpr int kCount = kPack<T>;
  __shared__ float first_sums[32], second_sums[32];
  const int packs = (a.width + kCount - 1) / kCount;
  const int64_t row = blockIdx.x, start = row * a.width;
  const float scale = 1.0f / static_cast<float>(a.width);
  Pack<T> held[kHold > 0 ? kHold : 1] = {};

  const auto fresh = [&](int pack) {
    const int at = pack * kCount, live = static_cast<int>(live_in_row<T, kVector>(a.width, at));
    Pack<T> p = load_pack<kVector>(a.x + start + at, live);
    if (!a.delta) return p;
    Floats<kCount> sum = widen(p);
    const Floats<kCount> d = widen(load_pack<kVector>(a.delta + start + at, live));
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum.v[i] += d.v[i];
    return narrowed<T>(sum);
  };
  // After the sum was written it may have replaced x.
  const auto again = [&](int slot, int pack) {
    if constexpr (kHold > 0) return held[slot];
    const int at = pack * kCount;
    if (a.delta && a.resid)
      return load_pack<kVector>(a.resid + start + at, live_in_row<T, kVector>(a.width, at));
    return fresh(pack);
  };

  float sum = 0;
  each_pack<kHold>(packs, [&](int slot, int pack) {
    const Pack<T> p = fresh(pack);
    if constexpr (kHold > 0) held[slot] = p;
    if (a.delta && a.resid)
      store_pack<kVector>(a.resid + start + pack * kCount, p,
                          live_in_row<T, kVector>(a.width, pack * kCount));
    const Floats<kCount> x = widen(p);
#pragma unroll
    for (float v : x.v) sum = kKind == NormKind::rms ? fmaf(v, v, sum) : sum + v;
  });
  float mean = 0, square = block_sum(sum, first_sums) * scale;
  if constexpr (kKind == NormKind::layer) {
    mean = square;
    sum = 0;
    each_pack<kHold>(packs, [&](int slot, int pack) {
      const Floats<kCount> x = widen(again(slot, pack));
      const int live = static_cast<int>(live_in_row<T, kVector>(a.width, pack * kCount));
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float v = i < live ? x.v[i] - mean : 0.0f;
        sum = fmaf(v, v, sum);
      }
    });
    square = block_sum(sum, second_sums) * scale;
  }
  const float rstd = inverse_root(square + a.eps);
  if (threadIdx.x == 0 && a.stats) {
    if constexpr (kKind == NormKind::rms) {
      a.stats[row] = rstd;
    } else {
      a.stats[2 * row] = mean;
      a.stats[2 * row + 1] = rstd;
    }
  }
  if (!a.y) return;
  each_pack<kHold>(packs, [&](int slot, int pack) {
    const int at = pack * kCount, live = static_cast<int>(live_in_row<T, kVector>(a.width, at));
    Floats<kCount> x = widen(again(slot, pack));
    const Floats<kCount> w = load_floats<kVector, kCount>(a.w + at, live);
    if constexpr (kKind == NormKind::rms) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) x.v[i] = x.v[i] * rstd * w.v[i];
    } else {
      const Floats<kCount> bias = load_floats<kVector, kCount>(a.bias + at, live);
#pragma unroll
      for (int i = 0; i < kCount; ++i) x.v[i] = fmaf((x.v[i] - mean) * rstd, w.v[i], bias.v[i]);
    }
    store_pack<kVector>(a.y + start + at, narrowed<T>(x), live);
  });
}

inline int threads_for(int64_t packs, int hold, int most) {
  const int64_t threads = round_up(ceil_div(packs, hold), 32);
  return static_cast<int>(threads < 32 ? 32 : threads > most ? most : threads);
}

template <class T, NormKind kKind>
void norm_of(const KernelArgs& args, cudaStream_t stream) {
  constexpr int kHold = 4, kMost = 1024;
  const int residual = args.attrs->residual ? 1 : 0;
  const int64_t rows = args.in[0].dims.rows(), width = args.in[0].dims.last();
  NormArgs<T> a{};
  a.x = args.in[0].as<T>();
  a.delta = residual ? args.in[1].as<T>() : nullptr;
  a.w = args.in[1 + residual].as<float>();
  a.bias = kKind == NormKind::layer ? args.in[2 + residual].as<float>() : nullptr;
  a.resid = residual ? args.out[0].as<T>() : nullptr;
  a.y = args.out[residual].as<T>();
  a.stats = args.out[1 + residual].as<float>();
  a.width = static_cast<int>(width);
  a.eps = args.attrs->eps;
  if (rows == 0) return;
  const int64_t packs = ceil_div(width, kPack<T>);
  const bool vector =
      width % kPack<T> == 0 && on_16_bytes({a.x, a.delta, a.w, a.bias, a.resid, a.y});
  const bool held = packs <= kHold * kMost;
  const auto kernel =
      vector ? (held ? norm_kernel<T, kKind, true, kHold> : norm_kernel<T, kKind, true, 0>)
             : (held ? norm_kernel<T, kKind, false, kHold> : norm_kernel<T, kKind, false, 0>);
  launch(kernel, blocks_for(rows, 1), dim3(threads_for(packs, kHold, kMost)), 0, stream, a);
}

template <NormKind kKind>
void norm(const KernelArgs& args, cudaStream_t stream) {
  args.in[0].dtype == Dtype::bf16 ? norm_of<Bf16, kKind>(args, stream)
                                  : norm_of<float, kKind>(args, stream);
}

// dresid is null without a residual.
template <class T>
struct NormGradArgs {
  const T* x;
  const float* stats;
  const float* w;
  const T* dy;
  const T* dresid;
  T* dx;
  float* partial;  // [runs, width] of dw, or [runs, 2·width] of dw and db
  int64_t rows, step;
  int width;
};

// Packs a thread whose column sums are in registers together with the row's x and dy; twice as many
// fit without these.
template <NormKind kKind>
constexpr int kNormGradHold = kKind == NormKind::layer ? 1 : 2;

// With x̂ = (x − mean)·rstd and g = dy·w: dx = rstd·(g − Σg/h − x̂·Σ(g·x̂)/h), without Σg for rms.
// A block owns a run of rows; a thread owns columns, and their sums over the run.
template <class T, NormKind kKind, bool kVector, int kHold>
__global__ void __launch_bounds__(512) norm_grad_kernel(NormGradArgs<T> a) {
  constexpr bool kLayer = kKind == NormKind::layer;
  constexpr int kCount = kPack<T>, kSlots = kHold > 0 ? kHold : 1;
  constexpr bool kKeep = kHold == kNormGradHold<kKind>;  // x and dy, from pass to pass over a row
  __shared__ float sums_g[2][32], sums_gx[2][32];        // of this row and of the one before
  const int width = a.width, packs = (width + kCount - 1) / kCount;
  const float scale = 1.0f / static_cast<float>(width);
  float* dw_run = a.partial + int64_t{blockIdx.x} * (kLayer ? 2 : 1) * width;
  float* db_run = dw_run + width;
  Floats<kCount> dw[kSlots], db[kSlots];
  each_pack<kHold>(packs, [&](int slot, int pack) {
    dw[slot] = db[slot] = zeros<T>();
    if constexpr (kHold == 0) {
      const int at = pack * kCount;
      store_floats<kVector, kCount>(dw_run + at, dw[slot], live_in_row<T, kVector>(width, at));
      if constexpr (kLayer)
        store_floats<kVector, kCount>(db_run + at, db[slot], live_in_row<T, kVector>(width, at));
    }
  });

  const int64_t begin = int64_t{blockIdx.x} * a.step;
  const int64_t end = begin + a.step < a.rows ? begin + a.step : a.rows;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t start = row * width;
    const float mean = kLayer ? a.stats[2 * row] : 0.0f;
    const float rstd = kLayer ? a.stats[2 * row + 1] : a.stats[row];
    Pack<T> x_held[kSlots], dy_held[kSlots];
    const auto normal = [&](const Floats<kCount>& x, int i) {
      return (kLayer ? x.v[i] - mean : x.v[i]) * rstd;
    };
    float sum_g = 0, sum_gx = 0;
    each_pack<kHold>(packs, [&](int slot, int pack) {
      const int at = pack * kCount, live = static_cast<int>(live_in_row<T, kVector>(width, at));
      const Pack<T> x_pack = load_pack<kVector>(a.x + start + at, live);
      const Pack<T> dy_pack = load_pack<kVector>(a.dy + start + at, live);
      if constexpr (kKeep) x_held[slot] = x_pack, dy_held[slot] = dy_pack;
      const Floats<kCount> x = widen(x_pack), d = widen(dy_pack);
      const Floats<kCount> w = load_floats<kVector, kCount>(a.w + at, live);
      if constexpr (kHold == 0) {
        dw[0] = load_floats<kVector, kCount>(dw_run + at, live);
        if constexpr (kLayer) db[0] = load_floats<kVector, kCount>(db_run + at, live);
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float xhat = normal(x, i), g = d.v[i] * w.v[i];  // columns beyond the row: g = 0
        if constexpr (kLayer) {
          sum_g += g;
          db[slot].v[i] += d.v[i];
        }
        sum_gx = fmaf(g, xhat, sum_gx);
        dw[slot].v[i] = fmaf(d.v[i], xhat, dw[slot].v[i]);
      }
      if constexpr (kHold == 0) {
        store_floats<kVector, kCount>(dw_run + at, dw[0], live);
        if constexpr (kLayer) store_floats<kVector, kCount>(db_run + at, db[0], live);
      }
    });
    const int turn = static_cast<int>(row - begin) % 2;
    const float mean_g = kLayer ? block_sum(sum_g, sums_g[turn]) * scale : 0.0f;
    const float mean_gx = block_sum(sum_gx, sums_gx[turn]) * scale;
    each_pack<kHold>(packs, [&](int slot, int pack) {
      const int at = pack * kCount, live = static_cast<int>(live_in_row<T, kVector>(width, at));
      Floats<kCount> x, d, arrived;
      if constexpr (kKeep) {
        x = widen(x_held[slot]), d = widen(dy_held[slot]);
      } else {
        x = widen(load_pack<kVector>(a.x + start + at, live));
        d = widen(load_pack<kVector>(a.dy + start + at, live));
      }
      const Floats<kCount> w = load_floats<kVector, kCount>(a.w + at, live);
      if (a.dresid) arrived = widen(load_pack<kVector>(a.dresid + start + at, live));
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        float g = d.v[i] * w.v[i];
        if constexpr (kLayer) g -= mean_g;
        g = fmaf(-mean_gx, normal(x, i), g);
        d.v[i] = a.dresid ? fmaf(g, rstd, arrived.v[i]) : g * rstd;
      }
      store_pack<kVector>(a.dx + start + at, narrowed<T>(d), live);
    });
  }
  if constexpr (kHold > 0) {
    each_pack<kHold>(packs, [&](int slot, int pack) {
      const int at = pack * kCount, live = static_cast<int>(live_in_row<T, kVector>(width, at));
      store_floats<kVector, kCount>(dw_run + at, dw[slot], live);
      if constexpr (kLayer) store_floats<kVector, kCount>(db_run + at, db[slot], live);
    });
  }
}

template <class T, NormKind kKind, bool kVector>
auto norm_grad_kernel_for(int64_t packs, int most) {
  constexpr int kHold = kNormGradHold<kKind>;
  if (packs <= kHold * most) return norm_grad_kernel<T, kKind, kVector, kHold>;
  if (packs <= 2 * kHold * most) return norm_grad_kernel<T, kKind, kVector, 2 * kHold>;
  return norm_grad_kernel<T, kKind, kVector, 0>;
}

template <class T, NormKind kKind>
void norm_grad_of(const KernelArgs& args, cudaStream_t stream) {
  constexpr bool kLayer = kKind == NormKind::layer;
  constexpr int kMost = 512;
  const int64_t rows = args.in[0].dims.rows(), width = args.in[0].dims.last();
  const RowRuns runs = norm_runs(rows);
  const int64_t stride = (kLayer ? 2 : 1) * width;
  Workspace workspace(kLayer ? "layernorm_grad" : "rmsnorm_grad", args);
  NormGradArgs<T> a{};
  a.x = args.in[0].as<T>();
  a.stats = args.in[1].as<float>();
  a.w = args.in[2].as<float>();
  a.dy = args.in[3].as<T>();
  a.dresid = args.attrs->residual ? args.in[4].as<T>() : nullptr;
  a.dx = args.out[0].as<T>();
  a.partial = workspace.take_array<float>(runs.count * stride);
  a.rows = rows;
  a.step = runs.step;
  a.width = static_cast<int>(width);
  const int64_t packs = ceil_div(width, kPack<T>);
  const bool vector = width % kPack<T> == 0 && on_16_bytes({a.x, a.w, a.dy, a.dresid, a.dx});
  const auto kernel = vector ? norm_grad_kernel_for<T, kKind, true>(packs, kMost)
                             : norm_grad_kernel_for<T, kKind, false>(packs, kMost);
  const int hold = (packs <= kNormGradHold<kKind> * kMost ? 1 : 2) * kNormGradHold<kKind>;
  if (runs.count > 0)
    launch(kernel, blocks_for(runs.count, 1), dim3(threads_for(packs, hold, kMost)), 0, stream, a);
  sum_runs(a.partial, runs.count, stride, width, args.accumulate, args.out[1].as<float>(), stream);
  if (kLayer)
    sum_runs(a.partial + width, runs.count, stride, width, args.accumulate, args.out[2].as<float>(),
             stream);
}

template <NormKind kKind>
void norm_grad(const KernelArgs& args, cudaStream_t stream) {
  args.in[0].dtype == Dtype::bf16 ? norm_grad_of<Bf16, kKind>(args, stream)
                                  : norm_grad_of<float, kKind>(args, stream);
}

}  // namespace spillway::cuda
