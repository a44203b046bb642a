// adamw. Bound by bytes: 28 an element, 30 with a bf16 parameter. Designed for 85 % of the
// bandwidth: a thread updates four elements, reading 16 bytes of each of four arrays; at 40
// registers 1536 threads of a multiprocessor have 96 KB in flight (15 KB are needed). Three
// divisions and a square root, rounded as IEEE demands, are some 100 instructions of the 250 that
// the bytes leave time for.
//
// The operations are those of kernels/cpu/isa/adamw.cpp, in its order, so that both give the same
// bits; nothing here may be contracted or approximated.
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/table.h"

namespace spillway::cuda {
namespace {

struct AdamwArgs {
  const float* grad;
  const StepScalars* scalars;
  const float* state;
  const float* m;
  const float* v;
  float* state_out;
  float* m_out;
  float* v_out;
  Bf16* param;  // null: the state is the parameter
  int64_t count;
  float beta1, beta2, rest1, rest2, decay, eps;
};

struct Updated {
  float state, m, v;
};

__device__ __forceinline__ Updated update(const AdamwArgs& a, const StepScalars& now, float grad,
                                          float state, float m, float v) {
  const float g = __fmul_rn(grad, now.clip_scale);
  const float mi = __fmaf_rn(a.beta1, m, __fmul_rn(a.rest1, g));
  const float vi = __fmaf_rn(a.beta2, v, __fmul_rn(a.rest2, __fmul_rn(g, g)));
  const float root = __fsqrt_rn(__fdiv_rn(vi, now.beta2_correction));
  const float u = __fdiv_rn(__fdiv_rn(mi, now.beta1_correction), __fadd_rn(root, a.eps));
  return {__fmaf_rn(-now.lr, __fmaf_rn(a.decay, state, u), state), mi, vi};
}

template <bool kVector>
__global__ void __launch_bounds__(kElementwiseThreads) adamw_kernel(AdamwArgs a) {
  const StepScalars& now = *a.scalars;
  if (now.skip_update) return;
  my_pack<float>(a.count, [&](int64_t at, int64_t live) {
    const Floats<4> grad = load_floats<kVector, 4>(a.grad + at, live);
    Floats<4> state = load_floats<kVector, 4>(a.state + at, live);
    Floats<4> m = load_floats<kVector, 4>(a.m + at, live);
    Floats<4> v = load_floats<kVector, 4>(a.v + at, live);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Updated next = update(a, now, grad.v[i], state.v[i], m.v[i], v.v[i]);
      state.v[i] = next.state, m.v[i] = next.m, v.v[i] = next.v;
    }
    store_floats<kVector, 4>(a.m_out + at, m, live);
    store_floats<kVector, 4>(a.v_out + at, v, live);
    store_floats<kVector, 4>(a.state_out + at, state, live);
    if (!a.param) return;
    if (kVector && live >= 4) {
      *reinterpret_cast<uint2*>(a.param + at) =
          make_uint2(narrow_pair(state.v[0], state.v[1]), narrow_pair(state.v[2], state.v[3]));
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (i < live) put(a.param + at + i, state.v[i]);
  });
}

}  // namespace

void adamw(const KernelArgs& args, const LaunchContext& context) {
  const Attrs& attrs = *args.attrs;
  AdamwArgs a{};
  a.grad = args.in[0].as<float>();
  a.scalars = args.in[1].as<StepScalars>();
  a.state = args.in[2].as<float>();
  a.m = args.in[3].as<float>();
  a.v = args.in[4].as<float>();
  a.state_out = args.out[0].as<float>();
  a.m_out = args.out[1].as<float>();
  a.v_out = args.out[2].as<float>();
  a.param = args.out_count > 3 ? args.out[3].as<Bf16>() : nullptr;
  a.count = args.in[0].dims.count();
  a.beta1 = attrs.beta1;
  a.beta2 = attrs.beta2;
  a.rest1 = 1.0f - attrs.beta1;
  a.rest2 = 1.0f - attrs.beta2;
  a.decay = attrs.weight_decay;
  a.eps = attrs.eps;
  const bool vector = on_16_bytes({a.grad, a.state, a.m, a.v, a.state_out, a.m_out, a.v_out}) &&
                      reinterpret_cast<uintptr_t>(a.param) % 8 == 0;
  launch_elementwise<float>(vector ? adamw_kernel<true> : adamw_kernel<false>, a.count, a,
                            context.stream);
}

}  // namespace spillway::cuda
