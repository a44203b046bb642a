#include "graph/op_seconds.h"

#include <algorithm>

namespace spillway {
namespace {

double fraction_of(const Cost& cost, const HardwareProfile& profile, bool bf16) {
  if (cost.attention)
    return cost.backward ? profile.attention_backward_fraction : profile.attention_fraction;
  return cost.gemm ? gemm_fraction(profile, bf16, cost.smallest) : 1.0;
}

}  // namespace

double op_seconds(OpKind op, const Attrs& attrs, const std::vector<TensorType>& in,
                  const HardwareProfile& profile, bool bf16) {
  const Cost cost = op_def(op).cost(attrs, in);
  const bool half = bf16 && (cost.gemm || cost.attention);
  const double peak = half ? profile.peak_bf16 : profile.peak_f32;
  return profile.launch_seconds +
         std::max(cost.flops / (peak * fraction_of(cost, profile, bf16)),
                  cost.bytes / (profile.memory_bandwidth * profile.memory_fraction));
}

}  // namespace spillway
