// Linear expressions of the certificate's program.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace spillway::verify_detail {

constexpr int32_t kNoColumn = -1;

// A linear expression; terms of one column add up.
class Sum {
 public:
  Sum& add(int32_t column, double factor) {
    if (column != kNoColumn && factor != 0) terms_[column] += factor;
    return *this;
  }
  Sum& add(const Sum& other, double factor = 1) {
    for (const auto& [column, value] : other.terms_) add(column, factor * value);
    return *this;
  }
  bool empty() const { return terms_.empty(); }
  std::vector<std::pair<int32_t, double>> terms() const { return {terms_.begin(), terms_.end()}; }

 private:
  std::map<int32_t, double> terms_;
};

}  // namespace spillway::verify_detail
