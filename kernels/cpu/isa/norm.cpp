// rmsnorm and layernorm with their gradients. A row is read from memory once and then from the
// first-level cache; statistics are f32 sums of four partial vectors.
#include "kernels/cpu/isa/kernel.h"

namespace spillway::cpu::SPILLWAY_ISA {
namespace {

enum class Kind { rms, layer };
enum class Input {
  plain,  // x
  sum,    // x + delta, which is written
  lost,   // x + delta, which nobody wants
};

SPILLWAY_INLINE float inverse_root(float x) { return 1.0f / __builtin_sqrtf(x); }

template <class T, Kind kKind, Input kInput>
void forward(const KernelArgs& args) {
  const bool residual = kInput != Input::plain;
  const int64_t width = row_length(args.in[0]), rows = rows_of(args.in[0]);
  const T* x = data<T>(args.in[0]);
  const T* delta = residual ? data<T>(args.in[1]) : nullptr;
  const float* w = data<float>(args.in[1 + residual]);
  const float* bias = kKind == Kind::layer ? data<float>(args.in[2 + residual]) : nullptr;
  T* resid = residual ? data<T>(args.out[0]) : nullptr;
  T* y = data<T>(args.out[residual]);
  float* stats = data<float>(args.out[1 + residual]);
  const float eps = args.attrs->eps, scale = 1.0f / static_cast<float>(width);

  each_row(rows, width, [=](int64_t row) {
    const T* xr = x + row * width;
    const T* dr = kInput == Input::plain ? nullptr : delta + row * width;
    T* rr = kInput == Input::sum ? resid + row * width : nullptr;
    auto fresh = [=](int64_t i, auto live) SPILLWAY_FLAT {
      F v = load(xr + i, live);
      if constexpr (kInput != Input::plain) v = rounded<T>(v + load(dr + i, live));
      return v;
    };
    // After the first pass the sum may have replaced x.
    auto again = [=](int64_t i, auto live) SPILLWAY_FLAT {
      if constexpr (kInput == Input::sum)
        return load(rr + i, live);
      else
        return fresh(i, live);
    };
    Sums first = zero_sums();
    strips4(width, [&](int64_t i, auto live, int p) SPILLWAY_FLAT {
      const F v = fresh(i, live);
      if constexpr (kInput == Input::sum) store(rr + i, v, live);
      first.part[p] = kKind == Kind::rms ? fma(v, v, first.part[p]) : first.part[p] + v;
    });
    float mean = 0, square = sum(first) * scale;
    if constexpr (kKind == Kind::layer) {
      mean = square;
      Sums second = zero_sums();
      strips4(width, [&](int64_t i, auto live, int p) SPILLWAY_FLAT {
        const F v = keep(again(i, live) - splat(mean), live);
        second.part[p] = fma(v, v, second.part[p]);
      });
      square = sum(second) * scale;
    }
    const float rstd = inverse_root(square + eps);
    if (stats && kKind == Kind::rms) stats[row] = rstd;
    if (stats && kKind == Kind::layer) stats[2 * row] = mean, stats[2 * row + 1] = rstd;
    if (!y) return;
    T* yr = y + row * width;
    strips(width, [&](int64_t i, auto live) SPILLWAY_FLAT {
      const F v = again(i, live);
      if constexpr (kKind == Kind::rms)
        store(yr + i, v * splat(rstd) * load(w + i, live), live);
      else
        store(yr + i, fma((v - splat(mean)) * splat(rstd), load(w + i, live), load(bias + i, live)),
              live);
    });
  });
}

// With x̂ = (x - mean)·rstd and g = dy·w: dx = rstd·(g - Σg/h - x̂·Σ(g·x̂)/h), without Σg for rms.
template <class T, Kind kKind, bool kResidual>
void backward(const KernelArgs& args) {
  constexpr bool kLayer = kKind == Kind::layer;
  const int64_t width = row_length(args.in[0]), rows = rows_of(args.in[0]);
  const T* x = data<T>(args.in[0]);
  const float* stats = data<float>(args.in[1]);
  const float* w = data<float>(args.in[2]);
  const T* dy = data<T>(args.in[3]);
  const T* dresid = kResidual ? data<T>(args.in[4]) : nullptr;
  T* dx = data<T>(args.out[0]);
  float* partial = static_cast<float*>(args.workspace);
  const float scale = 1.0f / static_cast<float>(width);
  const int64_t stride = (kLayer ? 2 : 1) * width;
  const RowBlocks blocks = row_blocks(rows);

  for_quanta(blocks.count, [=](int64_t block) {
    float* dw = partial + block * stride;
    float* db = dw + width;
    strips(stride, [&](int64_t i, auto live) SPILLWAY_FLAT { store(dw + i, splat(0.0f), live); });
    const int64_t end = smaller(rows, (block + 1) * blocks.step);
    for (int64_t row = block * blocks.step; row < end; ++row) {
      const T* xr = x + row * width;
      const T* dyr = dy + row * width;
      const F mean = splat(kLayer ? stats[2 * row] : 0.0f);
      const F rstd = splat(kLayer ? stats[2 * row + 1] : stats[row]);
      auto normal = [&](int64_t i, auto live) SPILLWAY_FLAT {
        const F v = load(xr + i, live);
        return (kLayer ? v - mean : v) * rstd;
      };
      Sums sum_g = zero_sums(), sum_gx = zero_sums();
      strips4(width, [&](int64_t i, auto live, int p) SPILLWAY_FLAT {
        const F d = load(dyr + i, live), xhat = normal(i, live), g = d * load(w + i, live);
        if constexpr (kLayer) {
          sum_g.part[p] = sum_g.part[p] + g;
          store(db + i, load(db + i, live) + d, live);
        }
        sum_gx.part[p] = fma(g, xhat, sum_gx.part[p]);
        store(dw + i, fma(d, xhat, load(dw + i, live)), live);
      });
      const F mean_g = splat(kLayer ? sum(sum_g) * scale : 0.0f);
      const F mean_gx = splat(sum(sum_gx) * scale);
      strips(width, [&](int64_t i, auto live) SPILLWAY_FLAT {
        F g = load(dyr + i, live) * load(w + i, live);
        if constexpr (kLayer) g = g - mean_g;
        g = fma(splat(0.0f) - mean_gx, normal(i, live), g);
        if constexpr (kResidual)
          g = fma(g, rstd, load(dresid + row * width + i, live));
        else
          g = g * rstd;
        store(dx + row * width + i, g, live);
      });
    }
  });
  add_blocks(partial, blocks.count, stride, width, args.accumulate, data<float>(args.out[1]));
  if constexpr (kLayer)
    add_blocks(partial + width, blocks.count, stride, width, args.accumulate,
               data<float>(args.out[2]));
}

template <class T, Kind kKind>
void forward_of(const KernelArgs& args) {
  if (!args.attrs->residual) return forward<T, kKind, Input::plain>(args);
  if (args.out[0].data) return forward<T, kKind, Input::sum>(args);
  forward<T, kKind, Input::lost>(args);
}
template <Kind kKind>
void forward_of(const KernelArgs& args) {
  args.in[0].dtype == Dtype::bf16 ? forward_of<Bf16, kKind>(args) : forward_of<float, kKind>(args);
}

template <class T, Kind kKind>
void backward_of(const KernelArgs& args) {
  args.attrs->residual ? backward<T, kKind, true>(args) : backward<T, kKind, false>(args);
}
template <Kind kKind>
void backward_of(const KernelArgs& args) {
  args.in[0].dtype == Dtype::bf16 ? backward_of<Bf16, kKind>(args)
                                  : backward_of<float, kKind>(args);
}

}  // namespace

void rmsnorm(const KernelArgs& args) { forward_of<Kind::rms>(args); }
void rmsnorm_grad(const KernelArgs& args) { backward_of<Kind::rms>(args); }
void layernorm(const KernelArgs& args) { forward_of<Kind::layer>(args); }
void layernorm_grad(const KernelArgs& args) { backward_of<Kind::layer>(args); }

}  // namespace spillway::cpu::SPILLWAY_ISA
