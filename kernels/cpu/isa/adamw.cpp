// adamw. Each element goes through the same IEEE operations (explicit fma, division, square root)
// that a scalar loop with fmaf would use, so that another device can give the same bits:
//   g = grad·clip_scale          m' = fma(b1, m, (1-b1)·g)        v' = fma(b2, v, (1-b2)·(g·g))
//   u = (m'/c1) / (sqrt(v'/c2) + eps)      state' = fma(-lr, fma(wd, state, u), state)
#include "kernels/cpu/isa/kernel.h"

namespace spillway::cpu::SPILLWAY_ISA {

void adamw(const KernelArgs& args) {
  const StepScalars* scalars = data<StepScalars>(args.in[1]);
  if (scalars->skip_update) return;
  const Attrs& attrs = *args.attrs;
  const float* grad = data<float>(args.in[0]);
  const float* state = data<float>(args.in[2]);
  const float* m = data<float>(args.in[3]);
  const float* v = data<float>(args.in[4]);
  float* state_out = data<float>(args.out[0]);
  float* m_out = data<float>(args.out[1]);
  float* v_out = data<float>(args.out[2]);
  Bf16* param = args.out_count > 3 ? data<Bf16>(args.out[3]) : nullptr;
  const F clip = splat(scalars->clip_scale), step = splat(-scalars->lr);
  const F c1 = splat(scalars->beta1_correction), c2 = splat(scalars->beta2_correction);
  const F b1 = splat(attrs.beta1), b2 = splat(attrs.beta2);
  const F rest1 = splat(1.0f - attrs.beta1), rest2 = splat(1.0f - attrs.beta2);
  const F decay = splat(attrs.weight_decay), eps = splat(attrs.eps);
  auto update = [=](int64_t i, auto live) SPILLWAY_FLAT {
    const F g = load(grad + i, live) * clip;
    const F mi = fma(b1, load(m + i, live), rest1 * g);
    const F vi = fma(b2, load(v + i, live), rest2 * (g * g));
    const F u = (mi / c1) / (sqrt(vi / c2) + eps);
    const F old = load(state + i, live), now = fma(step, fma(decay, old, u), old);
    store(m_out + i, mi, live);
    store(v_out + i, vi, live);
    store(state_out + i, now, live);
    return now;
  };
  if (param) {
    elementwise(elements(args.in[0]), [=](int64_t i, auto live) SPILLWAY_FLAT {
      store(param + i, update(i, live), live);
    });
  } else {
    elementwise(elements(args.in[0]), [=](int64_t i, auto live) SPILLWAY_FLAT { update(i, live); });
  }
}

}  // namespace spillway::cpu::SPILLWAY_ISA
