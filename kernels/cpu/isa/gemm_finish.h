// The last step of a product: sums in f32 to C's dtype, with a bias or what C held.
#pragma once

#include "base/dtype.h"
#include "kernels/cpu/isa/vec.h"

namespace spillway::cpu::SPILLWAY_ISA {
namespace {

template <class T, bool kBias, bool kAccumulate>
void finish_as(int64_t m, int64_t n, const float* sums, int64_t stride, const float* bias, T* c,
               int64_t ldc) {
  for (int64_t i = 0; i < m; ++i)
    strips(n, [&](int64_t j, auto live) SPILLWAY_FLAT {
      F x = load(sums + i * stride + j, live);
      if constexpr (kBias) x = x + load(bias + j, live);
      if constexpr (kAccumulate) x = load(c + i * ldc + j, live) + x;
      store(c + i * ldc + j, x, live);
    });
}

template <class T>
SPILLWAY_INLINE void finish_to(int64_t m, int64_t n, const float* sums, int64_t stride,
                               const float* bias, bool accumulate, T* c, int64_t ldc) {
  if (accumulate) {
    bias ? finish_as<T, true, true>(m, n, sums, stride, bias, c, ldc)
         : finish_as<T, false, true>(m, n, sums, stride, bias, c, ldc);
  } else {
    bias ? finish_as<T, true, false>(m, n, sums, stride, bias, c, ldc)
         : finish_as<T, false, false>(m, n, sums, stride, bias, c, ldc);
  }
}

void finish(int64_t m, int64_t n, const float* sums, int64_t stride, const float* bias,
            bool accumulate, void* c, Dtype dtype, int64_t ldc) {
  dtype == Dtype::f32 ? finish_to(m, n, sums, stride, bias, accumulate, static_cast<float*>(c), ldc)
                      : finish_to(m, n, sums, stride, bias, accumulate, static_cast<Bf16*>(c), ldc);
}

}  // namespace
}  // namespace spillway::cpu::SPILLWAY_ISA
