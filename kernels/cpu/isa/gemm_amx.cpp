// bf16 on matrix tiles. C is made in squares of 32 × 32: two tiles of A (16 rows × 32 k) by two of
// B (32 k as 16 pairs × 16 columns) fill four accumulators, so that each tile loaded is used twice.
#include "kernels/cpu/gemm_engine.h"
#include "kernels/cpu/isa/gemm_finish.h"
#include "kernels/cpu/isa/gemm_pack.h"

namespace spillway::cpu::SPILLWAY_ISA {
namespace {

constexpr int kSquare = 32;
constexpr int64_t kTileBytes = 1024;

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles of 16 rows × 32 k, contiguous, those of one row block following each other in k.
void pack_a(const void* a, int64_t row, int64_t column, int64_t m, int64_t k, void* to) {
  const Bf16* src = static_cast<const Bf16*>(a);
  const int64_t blocks = (m + kSquare - 1) / kSquare * 2, tiles = (k + 31) / 32;
  auto pack_tile = [=](int64_t block, int64_t tile) SPILLWAY_FLAT {
    const int64_t i = block * 16, p = tile * 32;
    const int64_t lines = m - i < 16 ? (m - i < 0 ? 0 : m - i) : 16;
    __m512i v[16];
    load_block<Bf16, true>(src + (lines ? i : 0) * row + p * column, row, column, lines,
                           k - p < 32 ? k - p : 32, v);
    char* out = static_cast<char*>(to) + (block * tiles + tile) * kTileBytes;
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) _mm512_storeu_si512(out + r * 64, v[r]);
  };
  if (column == 1) {  // walk along what is contiguous
    for (int64_t block = 0; block < blocks; ++block)
      for (int64_t tile = 0; tile < tiles; ++tile) pack_tile(block, tile);
  } else {
    for (int64_t tile = 0; tile < tiles; ++tile)
      for (int64_t block = 0; block < blocks; ++block) pack_tile(block, tile);
  }
}

// `lower`: rows 16…31 are wanted; `right`: columns 16…31 are.
template <bool kLower, bool kRight>
SPILLWAY_INLINE void square(int64_t tiles, const char* a, const char* b, float* c, int64_t ldc,
                            bool accumulate) {
  const int64_t stride = ldc * 4;
  asm volatile("" : : : "memory");  // gcc's tile loads do not say that they read memory
  if (accumulate) {
    _tile_loadd(0, c, stride);
    if constexpr (kRight) _tile_loadd(1, c + 16, stride);
    if constexpr (kLower) _tile_loadd(2, c + 16 * ldc, stride);
    if constexpr (kLower && kRight) _tile_loadd(3, c + 16 * ldc + 16, stride);
  } else {
    _tile_zero(0);
    if constexpr (kRight) _tile_zero(1);
    if constexpr (kLower) _tile_zero(2);
    if constexpr (kLower && kRight) _tile_zero(3);
  }
  const char* lower = a + tiles * kTileBytes;
  for (int64_t t = 0; t < tiles; ++t) {
    _tile_loadd(4, a, 64);
    _tile_loadd(6, b, 128);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kRight) {
      _tile_loadd(7, b + 64, 128);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kLower) {
      _tile_loadd(5, lower, 64);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kRight) _tile_dpbf16ps(3, 5, 7);
    }
    a += kTileBytes, lower += kTileBytes, b += 2 * kTileBytes;
  }
  _tile_stored(0, c, stride);
  if constexpr (kRight) _tile_stored(1, c + 16, stride);
  if constexpr (kLower) _tile_stored(2, c + 16 * ldc, stride);
  if constexpr (kLower && kRight) _tile_stored(3, c + 16 * ldc + 16, stride);
}

// A square that sticks out over the edge of C, through a full one of its own.
void edge_square(int64_t rows, int64_t columns, int64_t tiles, const char* a, const char* b,
                 float* c, int64_t ldc, bool accumulate) {
  alignas(64) float full[kSquare * kSquare];
  if (accumulate) {
    for (int64_t r = 0; r < kSquare; ++r)
      for (int64_t x = 0; x < kSquare; ++x)
        full[r * kSquare + x] = r < rows && x < columns ? c[r * ldc + x] : 0.0f;
  }
  const bool lower = rows > 16, right = columns > 16;
  if (lower && right) {
    square<true, true>(tiles, a, b, full, kSquare, accumulate);
  } else if (lower) {
    square<true, false>(tiles, a, b, full, kSquare, accumulate);
  } else if (right) {
    square<false, true>(tiles, a, b, full, kSquare, accumulate);
  } else {
    square<false, false>(tiles, a, b, full, kSquare, accumulate);
  }
  for (int64_t r = 0; r < rows; ++r)
    strips(columns, [&](int64_t x, auto live) SPILLWAY_FLAT {
      store(c + r * ldc + x, load(full + r * kSquare + x, live), live);
    });
}

void multiply(int64_t m, int64_t n, int64_t k, const void* a, const void* b, int64_t panel_bytes,
              float* c, int64_t ldc, bool accumulate) {
  TileConfig config;
  for (int t = 0; t < 8; ++t) config.row_bytes[t] = 64, config.rows[t] = 16;
  // The compiler does not see that the instruction reads the whole block.
  asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
  const int64_t tiles = (k + 31) / 32;
  for (int64_t j = 0; j < n; j += kSquare) {
    const char* pb = static_cast<const char*>(b) + j / kSquare * panel_bytes;
    for (int64_t i = 0; i < m; i += kSquare) {
      const char* pa = static_cast<const char*>(a) + i / 16 * tiles * kTileBytes;
      float* to = c + i * ldc + j;
      if (m - i >= kSquare && n - j >= kSquare) {
        square<true, true>(tiles, pa, pb, to, ldc, accumulate);
      } else {
        edge_square(m - i < kSquare ? m - i : kSquare, n - j < kSquare ? n - j : kSquare, tiles, pa,
                    pb, to, ldc, accumulate);
      }
    }
  }
  _tile_release();
}

}  // namespace

const GemmEngine kGemmBf16 = {kSquare,  kSquare, 32, 2, 2, 512, 384, pack_a, pack_b_by_k<Bf16, 32>,
                              multiply, finish};

}  // namespace spillway::cpu::SPILLWAY_ISA
