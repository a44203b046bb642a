#include "plan/cost.h"

#include <algorithm>

namespace spillway {

double op_seconds(OpKind op, const Attrs& attrs, const std::vector<TensorType>& in,
                  const HardwareProfile& profile, bool bf16) {
  const Cost cost = op_def(op).cost(attrs, in);
  const bool half = bf16 && (cost.gemm || cost.attention);
  const double peak = half ? profile.peak_bf16 : profile.peak_f32;
  const double fraction = cost.attention ? profile.attention_fraction
                          : cost.gemm    ? profile.gemm_fraction
                                         : 1.0;
  return profile.launch_seconds +
         std::max(cost.flops / (peak * fraction), cost.bytes / profile.memory_bandwidth);
}

}  // namespace spillway
