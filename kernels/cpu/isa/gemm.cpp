// Vector engines: f32, and bf16 widened to f32 for processors without bf16 products.
#include "kernels/cpu/gemm_engine.h"
#include "kernels/cpu/isa/gemm_finish.h"
#include "kernels/cpu/isa/gemm_micro.h"
#ifdef __AVX512F__
#include "kernels/cpu/isa/gemm_pack.h"
#endif

namespace spillway::cpu::SPILLWAY_ISA {
namespace {

SPILLWAY_INLINE float value_of(float x) { return x; }
SPILLWAY_INLINE float value_of(Bf16 x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16);
}

// A widened to f32.
template <class T>
void pack_a_plain(const void* a, int64_t row, int64_t column, int64_t m, int64_t k, void* to) {
  const T* src = static_cast<const T*>(a);
  float* out = static_cast<float*>(to);
  for (int64_t i = 0; i < m; i += kTileRows, out += k * kTileRows) {
    for (int64_t r = 0; r < kTileRows; ++r) {
      const T* line = src + (i + r) * row;
      for (int64_t p = 0; p < k; ++p)
        out[p * kTileRows + r] = i + r < m ? value_of(line[p * column]) : 0.0f;
    }
  }
}

// B in its own dtype.
template <class T>
void pack_b_plain(const void* b, int64_t row, int64_t column, int64_t k, int64_t n, void* to,
                  int64_t panel_bytes) {
  const T* src = static_cast<const T*>(b);
  for (int64_t j = 0; j < n; j += kTileColumns) {
    T* out = reinterpret_cast<T*>(static_cast<char*>(to) + j / kTileColumns * panel_bytes);
    const int64_t columns = n - j < kTileColumns ? n - j : kTileColumns;
    if (column == 1) {
      for (int64_t p = 0; p < k; ++p) {
        for (int64_t x = 0; x < columns; ++x) out[p * kTileColumns + x] = src[p * row + j + x];
        for (int64_t x = columns; x < kTileColumns; ++x) out[p * kTileColumns + x] = T{};
      }
    } else {
      for (int64_t x = 0; x < kTileColumns; ++x)
        for (int64_t p = 0; p < k; ++p)
          out[p * kTileColumns + x] = x < columns ? src[p * row + (j + x) * column] : T{};
    }
  }
}

template <class T>
void multiply(int64_t m, int64_t n, int64_t k, const void* a, const void* b, int64_t b_panel_bytes,
              float* c, int64_t ldc, bool accumulate) {
  const int64_t a_panel_bytes = k * kTileRows * static_cast<int64_t>(sizeof(float));
  multiply_tiles(m, n, k, a_panel_bytes, a, b, b_panel_bytes, c, ldc, accumulate,
                 [](const char*& pa, const char*& pb, F s[kTileRows][2]) SPILLWAY_FLAT {
                   const T* row = reinterpret_cast<const T*>(pb);
                   const F b0 = load(row, Full{}), b1 = load(row + kLanes, Full{});
                   const float* column = reinterpret_cast<const float*>(pa);
#pragma GCC unroll 16
                   for (int r = 0; r < kTileRows; ++r) {
                     const F x = splat(column[r]);
                     s[r][0] = fma(x, b0, s[r][0]);
                     s[r][1] = fma(x, b1, s[r][1]);
                   }
                   pa += kTileRows * sizeof(float);
                   pb += kTileColumns * sizeof(T);
                 });
}

}  // namespace

#ifdef __AVX512F__
const GemmEngine kGemmF32 = {kTileRows,
                             kTileColumns,
                             1,
                             4,
                             4,
                             256,
                             192,
                             pack_a_by_k<float, kTileRows>,
                             pack_b_by_k<float, 1>,
                             multiply<float>,
                             finish};
#else
const GemmEngine kGemmF32 = {
    kTileRows,           kTileColumns,    1,     4, 4, 256, 192, pack_a_plain<float>,
    pack_b_plain<float>, multiply<float>, finish};
#endif
const GemmEngine kGemmBf16 = {
    kTileRows,          kTileColumns,   1,     4, 2, 256, 192, pack_a_plain<Bf16>,
    pack_b_plain<Bf16>, multiply<Bf16>, finish};

}  // namespace spillway::cpu::SPILLWAY_ISA
