#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"

namespace spillway {

struct GemmRate {
  int64_t m = 0, n = 0, k = 0;
  double ours = 0, onednn = 0;  // FLOP/s, best of the repetitions; onednn 0 where it is not linked
};

// C[m, n] = A[m, k] · W[n, k]ᵀ with weights packed beforehand by oneDNN and in every call by ours.
std::vector<GemmRate> measure_gemm(Dtype dtype, int threads, int64_t repeat);

}  // namespace spillway
