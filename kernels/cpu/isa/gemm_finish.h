// The last step of a product: sums in f32 to C's dtype, with a bias.
#pragma once

#include "base/dtype.h"
#include "kernels/cpu/isa/vec.h"

namespace spillway::cpu::SPILLWAY_ISA {
namespace {

template <class T, bool kBias>
void finish_as(int64_t m, int64_t n, const float* sums, int64_t stride, const float* bias, T* c,
               int64_t ldc) {
  for (int64_t i = 0; i < m; ++i)
    strips(n, [&](int64_t j, auto live) SPILLWAY_FLAT {
      F x = load(sums + i * stride + j, live);
      if constexpr (kBias) x = x + load(bias + j, live);
      store(c + i * ldc + j, x, live);
    });
}

void finish(int64_t m, int64_t n, const float* sums, int64_t stride, const float* bias, void* c,
            Dtype dtype, int64_t ldc) {
  if (dtype == Dtype::f32) {
    auto* to = static_cast<float*>(c);
    bias ? finish_as<float, true>(m, n, sums, stride, bias, to, ldc)
         : finish_as<float, false>(m, n, sums, stride, bias, to, ldc);
  } else {
    auto* to = static_cast<Bf16*>(c);
    bias ? finish_as<Bf16, true>(m, n, sums, stride, bias, to, ldc)
         : finish_as<Bf16, false>(m, n, sums, stride, bias, to, ldc);
  }
}

}  // namespace
}  // namespace spillway::cpu::SPILLWAY_ISA
