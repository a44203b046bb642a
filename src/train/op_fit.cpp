#include "train/op_fit.h"

#include <array>
#include <cmath>
#include <limits>
#include <optional>

namespace spillway {
namespace {

constexpr int kTerms = 3;
using Terms = std::array<double, kTerms>;

// Seconds of each term at a rate of one, as parts of what was measured.
Terms parts_of(const OpSample& s) {
  return {1 / s.seconds, s.flops / s.seconds, s.bytes / s.seconds};
}

// Least squares over the terms of `chosen` (bits) alone, by the normal equations; nothing where
// they are singular.
std::optional<Terms> solved(const std::vector<OpSample>& samples, int chosen) {
  Terms scale{};  // so that a pivot's size says something
  for (const OpSample& s : samples)
    for (int t = 0; t < kTerms; ++t) scale[t] += parts_of(s)[t] * parts_of(s)[t];
  std::vector<int> of;
  for (int t = 0; t < kTerms; ++t)
    if (chosen >> t & 1) {
      if (scale[t] <= 0) return {};
      of.push_back(t);
    }
  const size_t n = of.size();
  double a[kTerms][kTerms + 1] = {};
  for (const OpSample& s : samples) {
    const Terms parts = parts_of(s);
    for (size_t i = 0; i < n; ++i) {
      const double row = parts[of[i]] / std::sqrt(scale[of[i]]);
      for (size_t j = 0; j < n; ++j) a[i][j] += row * parts[of[j]] / std::sqrt(scale[of[j]]);
      a[i][n] += row;
    }
  }
  constexpr double kSingular = 1e-9;
  for (size_t p = 0; p < n; ++p) {  // positive semi-definite: no pivoting
    if (a[p][p] < kSingular) return {};
    for (size_t i = 0; i < n; ++i) {
      if (i == p) continue;
      const double factor = a[i][p] / a[p][p];
      for (size_t j = p; j <= n; ++j) a[i][j] -= factor * a[p][j];
    }
  }
  Terms result{};
  for (size_t i = 0; i < n; ++i) result[of[i]] = a[i][n] / a[i][i] / std::sqrt(scale[of[i]]);
  return result;
}

double squared_error(const std::vector<OpSample>& samples, const Terms& factors) {
  double sum = 0;
  for (const OpSample& s : samples) {
    double ratio = 0;
    for (int t = 0; t < kTerms; ++t) ratio += factors[t] * parts_of(s)[t];
    sum += (ratio - 1) * (ratio - 1);
  }
  return sum;
}

}  // namespace

OpRate fit_op_rate(const std::vector<OpSample>& samples) {
  Terms best{};
  double least = std::numeric_limits<double>::infinity();
  for (int chosen = 1; chosen < 1 << kTerms; ++chosen) {
    const auto factors = solved(samples, chosen);
    if (!factors) continue;
    bool valid = true;
    for (const double f : *factors) valid = valid && f >= 0 && std::isfinite(f);
    if (!valid) continue;
    if (const double error = squared_error(samples, *factors); error < least) {
      least = error;
      best = *factors;
    }
  }
  OpRate rate;
  rate.seconds = best[0];
  rate.flops_per_second = best[1] > 0 ? 1 / best[1] : 0;
  rate.bytes_per_second = best[2] > 0 ? 1 / best[2] : 0;
  return rate;
}

}  // namespace spillway
