// What a plan says of its own quality, and what anyone needs to check it. Data types only, no code:
// the planner writes them, the plan file keeps them, the verifier believes none of them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "config/hardware.h"

namespace spillway {

// Multipliers of the rows of the linear program of one group size, by the rows' names; what is not
// named is 0. Any multipliers prove some bound (weak duality), whoever found them.
struct Certificate {
  int32_t group = 1;
  int32_t blocks = 1;        // buckets of neighbouring block layers that the program has at most
  double bound_seconds = 0;  // infinite: no plan of this group is faster than the plan, or fits
  std::vector<std::pair<std::string, double>> multipliers;
  friend bool operator==(const Certificate&, const Certificate&) = default;
};

// The claim that no plan within `budgets`, with workspaces for that many compute threads, takes
// less than `bound_seconds`.
struct QualityProof {
  Budgets budgets;
  int32_t threads = 1;
  double bound_seconds = 0;
  std::vector<Certificate> certificates;  // one a group size
  friend bool operator==(const QualityProof&, const QualityProof&) = default;
};

}  // namespace spillway
