// gelu (tanh form) and swiglu with their gradients.
#include "kernels/cpu/isa/kernel.h"

namespace spillway::cpu::SPILLWAY_ISA {
namespace {

// 0.5·x·(1 + tanh(u)) = x·sigmoid(2u), u = sqrt(2/π)·(x + 0.044715·x³); 2u = x·(a + b·x²).
constexpr float kA = 1.5957691216057308f, kB = 0.07135481282821094f;

SPILLWAY_INLINE F gelu_gate(F x, F square) {
  return sigmoid(x * fma(splat(kB), square, splat(kA)));
}

template <class T>
void gelu_of(const KernelArgs& args) {
  const T* x = data<T>(args.in[0]);
  T* y = data<T>(args.out[0]);
  elementwise(elements(args.in[0]), [=](int64_t i, auto live) SPILLWAY_FLAT {
    const F v = load(x + i, live);
    store(y + i, v * gelu_gate(v, v * v), live);
  });
}

template <class T>
void gelu_grad_of(const KernelArgs& args) {
  const T* x = data<T>(args.in[0]);
  const T* dy = data<T>(args.in[1]);
  T* dx = data<T>(args.out[0]);
  elementwise(elements(args.in[0]), [=](int64_t i, auto live) SPILLWAY_FLAT {
    const F v = load(x + i, live), square = v * v, s = gelu_gate(v, square);
    const F slope = (s - s * s) * v * fma(splat(3 * kB), square, splat(kA));
    store(dx + i, load(dy + i, live) * (s + slope), live);
  });
}

template <class T>
void swiglu_of(const KernelArgs& args) {
  const int64_t width = row_length(args.out[0]);
  const T* gu = data<T>(args.in[0]);
  T* y = data<T>(args.out[0]);
  each_row(rows_of(args.out[0]), width, [=](int64_t row) {
    const T* gate = gu + 2 * row * width;
    strips(width, [&](int64_t i, auto live) SPILLWAY_FLAT {
      const F g = load(gate + i, live);
      store(y + row * width + i, g * sigmoid(g) * load(gate + width + i, live), live);
    });
  });
}

template <class T>
void swiglu_grad_of(const KernelArgs& args) {
  const int64_t width = row_length(args.in[1]);
  const T* gu = data<T>(args.in[0]);
  const T* dy = data<T>(args.in[1]);
  T* dgu = data<T>(args.out[0]);
  each_row(rows_of(args.in[1]), width, [=](int64_t row) {
    const T* gate = gu + 2 * row * width;
    T* out = dgu + 2 * row * width;
    strips(width, [&](int64_t i, auto live) SPILLWAY_FLAT {
      const F g = load(gate + i, live), up = load(gate + width + i, live);
      const F d = load(dy + row * width + i, live), s = sigmoid(g), silu = g * s;
      // d silu / dg = s·(1 + g·(1 - s)) = s + silu - silu·s
      store(out + i, d * up * fma(splat(0.0f) - silu, s, s + silu), live);
      store(out + width + i, d * silu, live);
    });
  });
}

}  // namespace

void gelu(const KernelArgs& args) {
  args.in[0].dtype == Dtype::bf16 ? gelu_of<Bf16>(args) : gelu_of<float>(args);
}
void gelu_grad(const KernelArgs& args) {
  args.in[0].dtype == Dtype::bf16 ? gelu_grad_of<Bf16>(args) : gelu_grad_of<float>(args);
}
void swiglu(const KernelArgs& args) {
  args.in[0].dtype == Dtype::bf16 ? swiglu_of<Bf16>(args) : swiglu_of<float>(args);
}
void swiglu_grad(const KernelArgs& args) {
  args.in[0].dtype == Dtype::bf16 ? swiglu_grad_of<Bf16>(args) : swiglu_grad_of<float>(args);
}

}  // namespace spillway::cpu::SPILLWAY_ISA
