// vec.h over arrays, so that tests can look at each instruction set's version.
#include "kernels/cpu/isa/probe.h"

#include "kernels/cpu/isa/vec.h"

namespace spillway::cpu::SPILLWAY_ISA {

void probe_exp(const float* x, float* y, int64_t n) {
  strips(n,
         [=](int64_t i, auto live) SPILLWAY_FLAT { store(y + i, exp(load(x + i, live)), live); });
}
void probe_tanh(const float* x, float* y, int64_t n) {
  strips(n,
         [=](int64_t i, auto live) SPILLWAY_FLAT { store(y + i, tanh(load(x + i, live)), live); });
}
void probe_narrow(const float* x, uint16_t* y, int64_t n) {
  Bf16* to = reinterpret_cast<Bf16*>(y);
  strips(n, [=](int64_t i, auto live) SPILLWAY_FLAT { store(to + i, load(x + i, live), live); });
}
void probe_widen(const uint16_t* x, float* y, int64_t n) {
  const Bf16* from = reinterpret_cast<const Bf16*>(x);
  strips(n, [=](int64_t i, auto live) SPILLWAY_FLAT { store(y + i, load(from + i, live), live); });
}
float probe_sum(const float* x, int64_t n) {
  Sums s = zero_sums();
  strips4(n, [&](int64_t i, auto live, int p)
                 SPILLWAY_FLAT { s.part[p] = s.part[p] + load(x + i, live); });
  return sum(s);
}
// x must hold a whole number of vectors.
float probe_maximum(const float* x, int64_t n) {
  F most = splat(-__builtin_inff());
  for (int64_t i = 0; i < n; i += kLanes) most = max(most, load(x + i, Full{}));
  return maximum(most);
}

}  // namespace spillway::cpu::SPILLWAY_ISA
