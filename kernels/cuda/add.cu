// add: bound by bytes, 12 an element; designed for 90 % of the bandwidth (elementwise.cuh).
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/table.h"

namespace spillway::cuda {
namespace {

struct AddArgs {
  const float* a;
  const float* b;
  float* out;
  int64_t count;
};

template <bool kVector>
__global__ void __launch_bounds__(kElementwiseThreads) add_kernel(AddArgs args) {
  my_pack<float>(args.count, [&](int64_t at, int64_t live) {
    Floats<4> sum = load_floats<kVector, 4>(args.a + at, live);
    const Floats<4> b = load_floats<kVector, 4>(args.b + at, live);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum.v[i] += b.v[i];
    store_floats<kVector, 4>(args.out + at, sum, live);
  });
}

}  // namespace

void add(const KernelArgs& args, const LaunchContext& context) {
  const AddArgs a = {args.in[0].as<float>(), args.in[1].as<float>(), args.out[0].as<float>(),
                     args.in[0].dims.count()};
  launch_elementwise<float>(on_16_bytes({a.a, a.b, a.out}) ? add_kernel<true> : add_kernel<false>,
                            a.count, a, context.stream);
}

}  // namespace spillway::cuda
