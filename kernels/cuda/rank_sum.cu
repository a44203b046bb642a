// rank_sum: the pieces of all ranks in the order of graph/ops/rank_sum.h. Bound by bytes: 4 an
// element, rank and result; designed for 90 % of the bandwidth (elementwise.cuh).
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/table.h"

namespace spillway::cuda {
namespace {

struct RankSumArgs {
  const float* own;
  const float* staging;
  float* out;
  int64_t count, stride;
  int ranks, rank, inner;
  bool accumulate;
};

template <bool kVector>
__global__ void __launch_bounds__(kElementwiseThreads) rank_sum_kernel(RankSumArgs a) {
  my_pack<float>(a.count, [&](int64_t at, int64_t live) {
    const auto piece = [&](int p) {
      const float* from = p == a.rank ? a.own : a.staging + (p < a.rank ? p : p - 1) * a.stride;
      return load_floats<kVector, 4>(from + at, live);
    };
    Floats<4> total;
    for (int first = 0; first < a.ranks; first += a.inner) {
      const int end = first + a.inner < a.ranks ? first + a.inner : a.ranks;
      Floats<4> group = piece(first);
#pragma unroll 4
      for (int p = first + 1; p < end; ++p) {
        const Floats<4> next = piece(p);
#pragma unroll
        for (int i = 0; i < 4; ++i) group.v[i] += next.v[i];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) total.v[i] = first == 0 ? group.v[i] : total.v[i] + group.v[i];
    }
    if (a.accumulate) {
      const Floats<4> before = load_floats<kVector, 4>(a.out + at, live);
#pragma unroll
      for (int i = 0; i < 4; ++i) total.v[i] = before.v[i] + total.v[i];
    }
    store_floats<kVector, 4>(a.out + at, total, live);
  });
}

}  // namespace

void rank_sum(const KernelArgs& args, const LaunchContext& context) {
  const Attrs& attrs = *args.attrs;
  RankSumArgs a{};
  a.own = args.in[0].as<float>();
  a.staging = attrs.ranks > 1 ? args.in[1].as<float>() : nullptr;
  a.out = args.out[0].as<float>();
  a.count = args.in[0].dims.count();
  a.stride = attrs.ranks > 1 ? args.in[1].dims.count() / (attrs.ranks - 1) : 0;
  a.ranks = attrs.ranks;
  a.rank = attrs.rank;
  a.inner = attrs.inner < 1 ? 1 : attrs.inner;
  a.accumulate = args.accumulate;
  const bool vector = on_16_bytes({a.own, a.staging, a.out}) && a.stride % 4 == 0;
  launch_elementwise<float>(vector ? rank_sum_kernel<true> : rank_sum_kernel<false>, a.count, a,
                            context.stream);
}

}  // namespace spillway::cuda
