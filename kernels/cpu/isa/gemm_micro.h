// The register tile of the vector engines: kRows rows × two vectors of C stay in registers while k
// runs; per k two loads of B and a broadcast per row of A.
#pragma once

#include "kernels/cpu/isa/vec.h"

namespace spillway::cpu::SPILLWAY_ISA {
namespace {

#ifdef __AVX512F__
constexpr int kTileRows = 12;  // 24 accumulators of 32 registers; 12 divides the usual widths
#else
constexpr int kTileRows = 6;  // 12 of 16
#endif
constexpr int kTileColumns = 2 * kLanes;

// One tile. `steps` of k, each with kTileRows packed elements of A and kTileColumns of B; Step is
// void(const char*& a, const char*& b, F s[kTileRows][2]) and advances both.
template <class Step>
SPILLWAY_INLINE void micro(int64_t steps, const void* a, const void* b, float* c, int64_t ldc,
                           bool accumulate, const Step& step) {
  F s[kTileRows][2];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) s[r][0] = s[r][1] = splat(0.0f);
  const char* pa = static_cast<const char*>(a);
  const char* pb = static_cast<const char*>(b);
  for (int64_t p = 0; p < steps; ++p) step(pa, pb, s);
  if (accumulate) {
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) {
      s[r][0] = s[r][0] + load(c + r * ldc, Full{});
      s[r][1] = s[r][1] + load(c + r * ldc + kLanes, Full{});
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    store(c + r * ldc, s[r][0], Full{});
    store(c + r * ldc + kLanes, s[r][1], Full{});
  }
}

// All tiles of C[m, n]; those that stick out over its edge go through a full tile of their own.
template <class Step>
SPILLWAY_INLINE void multiply_tiles(int64_t m, int64_t n, int64_t steps, int64_t a_panel_bytes,
                                    const void* a, const void* b, int64_t b_panel_bytes, float* c,
                                    int64_t ldc, bool accumulate, const Step& step) {
  for (int64_t j = 0; j < n; j += kTileColumns) {
    const void* pb = static_cast<const char*>(b) + j / kTileColumns * b_panel_bytes;
    const int64_t columns = n - j < kTileColumns ? n - j : kTileColumns;
    for (int64_t i = 0; i < m; i += kTileRows) {
      const void* pa = static_cast<const char*>(a) + i / kTileRows * a_panel_bytes;
      const int64_t rows = m - i < kTileRows ? m - i : kTileRows;
      float* to = c + i * ldc + j;
      if (rows == kTileRows && columns == kTileColumns) {
        micro(steps, pa, pb, to, ldc, accumulate, step);
        continue;
      }
      float edge[kTileRows * kTileColumns];
      micro(steps, pa, pb, edge, kTileColumns, false, step);
      for (int64_t r = 0; r < rows; ++r)
        strips(columns, [&](int64_t x, auto live) SPILLWAY_FLAT {
          F value = load(edge + r * kTileColumns + x, live);
          if (accumulate) value = value + load(to + r * ldc + x, live);
          store(to + r * ldc + x, value, live);
        });
    }
  }
}

}  // namespace
}  // namespace spillway::cpu::SPILLWAY_ISA
