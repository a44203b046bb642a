// Packing through blocks of 16 × 16 dwords: a dword is one f32, or two bf16 that follow each other
// in k. A "line" is a row of A or a column of B. Needs AVX-512.
#pragma once

#include "kernels/cpu/isa/vec.h"

namespace spillway::cpu::SPILLWAY_ISA {
namespace {

SPILLWAY_INLINE void transpose16(__m512i v[16]) {
  __m512i t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    v[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    v[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    v[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

constexpr int64_t low_bits(int64_t count) { return count >= 32 ? 0xffffffff : (1ll << count) - 1; }

// Elements (line, k) at src + line·line_stride + k·k_stride; one stride is 1. Up to 16 lines and 16
// dwords of k; what lies beyond `lines` or `k` elements reads as zero and is not touched.
// kByLine: v[i] = line i's 16 dwords; else v[p] = dword p of 16 lines.
template <class T, bool kByLine>
SPILLWAY_INLINE void load_block(const T* src, int64_t line_stride, int64_t k_stride, int64_t lines,
                                int64_t k, __m512i v[16]) {
  constexpr bool kPairs = sizeof(T) == 2;
  const __m512i zero = _mm512_setzero_si512();
  if (k_stride == 1) {
    const auto mask = low_bits(k);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      if (i >= lines) {
        v[i] = zero;
      } else if constexpr (kPairs) {
        v[i] = _mm512_maskz_loadu_epi16(static_cast<__mmask32>(mask), src + i * line_stride);
      } else {
        v[i] = _mm512_maskz_loadu_epi32(static_cast<__mmask16>(mask), src + i * line_stride);
      }
    }
    if constexpr (!kByLine) transpose16(v);
  } else {
    const auto mask = static_cast<__mmask16>(low_bits(lines));
    constexpr int kPer = kPairs ? 2 : 1;
#pragma GCC unroll 16
    for (int p = 0; p < 16; ++p) {
      const T* row = src + p * kPer * k_stride;
      if (p * kPer >= k) {
        v[p] = zero;
      } else if constexpr (kPairs) {
        const __m512i even = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, row));
        const __m512i odd =
            p * 2 + 1 < k ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, row + k_stride))
                          : zero;
        v[p] = _mm512_or_si512(even, _mm512_slli_epi32(odd, 16));
      } else {
        v[p] = _mm512_maskz_loadu_epi32(mask, row);
      }
    }
    if constexpr (kByLine) transpose16(v);
  }
}

// Panels of kRows rows; within one, dword p of all rows is contiguous.
template <class T, int kRows>
void pack_a_by_k(const void* a, int64_t row, int64_t column, int64_t m, int64_t k, void* to) {
  constexpr int kBlock = sizeof(T) == 2 ? 32 : 16;  // elements of 16 dwords
  constexpr int kPer = sizeof(T) == 2 ? 2 : 1;
  const T* src = static_cast<const T*>(a);
  const int64_t panel_dwords = (k + kPer - 1) / kPer * kRows;
  const __mmask16 mask = static_cast<__mmask16>(low_bits(kRows));
  auto pack_block = [=](int64_t i, int64_t p) SPILLWAY_FLAT {
    const int64_t lines = m - i < kRows ? m - i : kRows, ks = k - p < kBlock ? k - p : kBlock;
    const int64_t dwords = (ks + kPer - 1) / kPer;
    __m512i v[16];
    load_block<T, false>(src + i * row + p * column, row, column, lines, ks, v);
    int32_t* out = static_cast<int32_t*>(to) + i / kRows * panel_dwords + p / kPer * kRows;
    if (dwords == 16) {
#pragma GCC unroll 16
      for (int q = 0; q < 16; ++q) _mm512_mask_storeu_epi32(out + q * kRows, mask, v[q]);
    } else {
      for (int64_t q = 0; q < dwords; ++q) _mm512_mask_storeu_epi32(out + q * kRows, mask, v[q]);
    }
  };
  if (column == 1) {  // walk along what is contiguous
    for (int64_t i = 0; i < m; i += kRows)
      for (int64_t p = 0; p < k; p += kBlock) pack_block(i, p);
  } else {
    for (int64_t p = 0; p < k; p += kBlock)
      for (int64_t i = 0; i < m; i += kRows) pack_block(i, p);
  }
}

// Panels of 32 columns; within one, dword p of all columns is contiguous. k is padded with zeros to
// a multiple of kMultiple elements.
template <class T, int kMultiple>
SPILLWAY_INLINE void pack_b_block(const T* src, int64_t row, int64_t column, int64_t k, int64_t n,
                                  int64_t p, int64_t panel, void* to, int64_t panel_bytes) {
  constexpr int kBlock = sizeof(T) == 2 ? 32 : 16;
  constexpr int kPer = sizeof(T) == 2 ? 2 : 1;
  const int64_t ks = k - p < kBlock ? k - p : kBlock;
  const int64_t padded = (ks + kMultiple - 1) / kMultiple * kMultiple / kPer;
  for (int half = 0; half < 2; ++half) {
    const int64_t j = panel * 32 + half * 16;
    const int64_t lines = n - j < 16 ? (n - j < 0 ? 0 : n - j) : 16;
    __m512i v[16];
    load_block<T, false>(src + p * row + (lines ? j : 0) * column, column, row, lines, ks, v);
    auto* out = reinterpret_cast<int32_t*>(static_cast<char*>(to) + panel * panel_bytes) +
                p / kPer * 32 + half * 16;
    if (padded == 16) {
#pragma GCC unroll 16
      for (int q = 0; q < 16; ++q) _mm512_storeu_si512(out + q * 32, v[q]);
    } else {
      for (int64_t q = 0; q < padded; ++q) _mm512_storeu_si512(out + q * 32, v[q]);
    }
  }
}

template <class T, int kMultiple>
void pack_b_by_k(const void* b, int64_t row, int64_t column, int64_t k, int64_t n, void* to,
                 int64_t panel_bytes) {
  constexpr int kBlock = sizeof(T) == 2 ? 32 : 16;
  const T* src = static_cast<const T*>(b);
  const int64_t panels = (n + 31) / 32;
  if (row == 1) {  // k is contiguous: walk along it
    for (int64_t q = 0; q < panels; ++q)
      for (int64_t p = 0; p < k; p += kBlock)
        pack_b_block<T, kMultiple>(src, row, column, k, n, p, q, to, panel_bytes);
  } else {
    for (int64_t p = 0; p < k; p += kBlock)
      for (int64_t q = 0; q < panels; ++q)
        pack_b_block<T, kMultiple>(src, row, column, k, n, p, q, to, panel_bytes);
  }
}

}  // namespace
}  // namespace spillway::cpu::SPILLWAY_ISA
