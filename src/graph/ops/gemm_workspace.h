// The one formula for scratch bytes of a matrix product.
#pragma once

#include "base/dtype.h"

namespace spillway {

// Upper bound, in bytes, of what any backend needs for c[m,n] = a[m,k]·b[k,n] with either factor
// possibly transposed in memory: b packed, and for each thread a packed block of a and of sums.
// A multiple of 64.
int64_t gemm_workspace(int64_t m, int64_t n, int64_t k, Dtype a, Dtype b, Dtype c, int threads);

// Each part of a workspace of the CUDA kernels begins at a multiple of this.
constexpr int64_t kDeviceAlign = 256;
constexpr int64_t device_aligned(int64_t bytes) { return round_up(bytes, kDeviceAlign); }

}  // namespace spillway
