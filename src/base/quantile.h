// Order statistics of measured values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace spillway {

// The value that the share `at` of all others is below: 0 the smallest, 1 the largest; 0 of none.
inline double quantile(std::vector<double> values, double at) {
  if (values.empty()) return 0;
  const double rank = at * static_cast<double>(values.size() - 1) + 0.5;
  const auto place = values.begin() + static_cast<std::ptrdiff_t>(rank);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

inline double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

}  // namespace spillway
