// swiglu and its gradient. Bound by bytes: 6 an element of y in bf16 forward, 10 backward. Designed
// for 90 % of the bandwidth: a thread does one pack of a row, so 16 bytes of gate and of up (and
// dy) each; at 32 registers all 2048 threads of a multiprocessor have 64 KB in flight (15 KB are
// needed).
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/table.h"

namespace spillway::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
struct SwigluArgs {
  const T* gu;
  const T* dy;  // gradient only
  T* out;
  int64_t width;  // of y
};

// Block (x, y): row x, the y-th run of kThreads packs.
template <class T, bool kGradient, bool kVector>
__global__ void __launch_bounds__(kThreads) swiglu_kernel(SwigluArgs<T> a) {
  const int64_t row = blockIdx.x;
  const int64_t at = (int64_t{blockIdx.y} * kThreads + static_cast<int>(threadIdx.x)) * kPack<T>;
  const int64_t live = live_in_row<T, kVector>(a.width, at);
  if (at >= a.width) return;
  const T* gate = a.gu + 2 * row * a.width + at;
  Floats<kPack<T>> g = widen(load_pack<kVector>(gate, live));
  Floats<kPack<T>> up = widen(load_pack<kVector>(gate + a.width, live)), dy;
  if constexpr (kGradient) dy = widen(load_pack<kVector>(a.dy + row * a.width + at, live));
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    const float s = sigmoid<T>(g.v[i]), silu = g.v[i] * s;
    if constexpr (kGradient) {
      // d silu / dg = s·(1 + g·(1 − s)) = s + silu − silu·s
      g.v[i] = dy.v[i] * up.v[i] * fmaf(-silu, s, s + silu);
      up.v[i] = dy.v[i] * silu;
    } else {
      g.v[i] = silu * up.v[i];
    }
  }
  if constexpr (kGradient) {
    T* out = a.out + 2 * row * a.width + at;
    store_pack<kVector>(out, narrowed<T>(g), live);
    store_pack<kVector>(out + a.width, narrowed<T>(up), live);
  } else {
    store_pack<kVector>(a.out + row * a.width + at, narrowed<T>(g), live);
  }
}

template <class T, bool kGradient>
void run(const KernelArgs& args, cudaStream_t stream) {
  const TensorArg& y = kGradient ? args.in[1] : args.out[0];
  const int64_t rows = y.dims.rows(), width = y.dims.last();
  const SwigluArgs<T> a = {args.in[0].as<T>(), kGradient ? args.in[1].as<T>() : nullptr,
                           args.out[0].as<T>(), width};
  if (rows == 0) return;
  const bool vector = width % kPack<T> == 0 && on_16_bytes({a.gu, a.dy, a.out});
  dim3 grid = blocks_for(rows, 1);
  grid.y = blocks_for(ceil_div(width, kPack<T>), kThreads).x;
  launch(vector ? swiglu_kernel<T, kGradient, true> : swiglu_kernel<T, kGradient, false>, grid,
         dim3(kThreads), 0, stream, a);
}

}  // namespace

void swiglu(const KernelArgs& args, const LaunchContext& context) {
  args.in[0].dtype == Dtype::bf16 ? run<Bf16, false>(args, context.stream)
                                  : run<float, false>(args, context.stream);
}
void swiglu_grad(const KernelArgs& args, const LaunchContext& context) {
  args.in[0].dtype == Dtype::bf16 ? run<Bf16, true>(args, context.stream)
                                  : run<float, true>(args, context.stream);
}

}  // namespace spillway::cuda
