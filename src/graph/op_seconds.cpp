#include "graph/op_seconds.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace spillway {
namespace {

double fraction_of(const Cost& cost, const HardwareProfile& profile, bool bf16) {
  if (cost.attention)
    return cost.backward ? profile.attention_backward_fraction : profile.attention_fraction;
  return cost.gemm ? gemm_fraction(profile, bf16, cost.smallest) : 1.0;
}

const OpRate* measured(OpKind op, const HardwareProfile& profile, bool bf16) {
  const auto wanted = std::pair(op_def(op).name, bf16);
  const auto at =
      std::lower_bound(profile.op_rates.begin(), profile.op_rates.end(), wanted,
                       [](const OpRate& rate, const auto& to) {
                         return std::pair<std::string_view, bool>(rate.op, rate.bf16) < to;
                       });
  return at != profile.op_rates.end() && at->op == wanted.first && at->bf16 == bf16 ? &*at
                                                                                    : nullptr;
}

}  // namespace

void check_op_rates(const HardwareProfile& profile) {
  std::vector<std::string> names;
  for (const OpRate& rate : profile.op_rates) {
    if (names.empty())
      for (int op = 0; op < kOpCount; ++op)
        names.emplace_back(op_def(static_cast<OpKind>(op)).name);
    if (std::find(names.begin(), names.end(), rate.op) == names.end())
      bad_input("hardware profile {}: op_rates: there is no op \"{}\"; did you mean \"{}\"?",
                profile.name, rate.op, nearest(rate.op, names));
  }
}

double op_seconds(OpKind op, const Attrs& attrs, const std::vector<TensorType>& in,
                  const HardwareProfile& profile, bool bf16) {
  const Cost cost = op_def(op).cost(attrs, in);
  if (const OpRate* rate = measured(op, profile, bf16)) {
    double seconds = rate->seconds;
    if (rate->flops_per_second > 0) seconds += cost.flops / rate->flops_per_second;
    if (rate->bytes_per_second > 0) seconds += cost.bytes / rate->bytes_per_second;
    return seconds;
  }
  const bool half = bf16 && (cost.gemm || cost.attention);
  const double peak = half ? profile.peak_bf16 : profile.peak_f32;
  return profile.launch_seconds +
         std::max(cost.flops / (peak * fraction_of(cost, profile, bf16)),
                  cost.bytes / (profile.memory_bandwidth * profile.memory_fraction));
}

}  // namespace spillway
