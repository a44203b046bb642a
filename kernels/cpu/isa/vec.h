// One vector of f32 in the instruction set of the including variant file, and what kernels do with
// it. Everything here has internal linkage (see kernels/cpu/CMakeLists.txt).
//
// A row is walked by strips(): full vectors, then one masked rest. Dead lanes read as zero and are
// never written; a live element gets the same bits in a full vector and in a rest, at any address.
// Operators + - * / round once each (IEEE); fma() is the only contraction.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#ifndef SPILLWAY_ISA
#error "only for files in kernels/cpu/isa, which are compiled with SPILLWAY_ISA"
#endif

#define SPILLWAY_INLINE inline __attribute__((always_inline))
// For lambdas: [&](…) SPILLWAY_FLAT { … }
#define SPILLWAY_FLAT __attribute__((always_inline))

namespace spillway::cpu::SPILLWAY_ISA {
namespace {

struct Bf16 {
  uint16_t bits;
};

struct Full {};  // every lane lives

#ifdef __AVX512F__

constexpr int kLanes = 16;
using F = __m512;
using D = __m512d;  // half as many lanes
using Mask = __mmask16;

SPILLWAY_INLINE Mask tail(int64_t live) { return static_cast<Mask>((1u << live) - 1); }
SPILLWAY_INLINE F splat(float x) { return _mm512_set1_ps(x); }
SPILLWAY_INLINE F load(const float* p, Full) { return _mm512_loadu_ps(p); }
SPILLWAY_INLINE F load(const float* p, Mask m) { return _mm512_maskz_loadu_ps(m, p); }
SPILLWAY_INLINE void store(float* p, F x, Full) { _mm512_storeu_ps(p, x); }
SPILLWAY_INLINE void store(float* p, F x, Mask m) { _mm512_mask_storeu_ps(p, m, x); }

SPILLWAY_INLINE F widen(__m256i halves) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
// To nearest, ties to even; a NaN stays one (quiet). vcvtneps2bf16 would flush denormals.
SPILLWAY_INLINE __m256i narrow(F x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
}
SPILLWAY_INLINE F load(const Bf16* p, Full) {
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
SPILLWAY_INLINE F load(const Bf16* p, Mask m) { return widen(_mm256_maskz_loadu_epi16(m, p)); }
SPILLWAY_INLINE void store(Bf16* p, F x, Full) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(x));
}
SPILLWAY_INLINE void store(Bf16* p, F x, Mask m) { _mm256_mask_storeu_epi16(p, m, narrow(x)); }

SPILLWAY_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
SPILLWAY_INLINE F sqrt(F x) { return _mm512_sqrt_ps(x); }
SPILLWAY_INLINE F min(F a, F b) { return _mm512_min_ps(a, b); }  // b where one is NaN
SPILLWAY_INLINE F max(F a, F b) { return _mm512_max_ps(a, b); }
SPILLWAY_INLINE F nearest(F x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
SPILLWAY_INLINE F scale_by_power(F x, F n) { return _mm512_scalef_ps(x, n); }  // x · 2ⁿ
SPILLWAY_INLINE F magnitude(F x) { return _mm512_abs_ps(x); }
SPILLWAY_INLINE F with_sign(F size, F sign) {
  const __m512i bit = _mm512_set1_epi32(INT32_MIN);
  return _mm512_castsi512_ps(
      _mm512_or_si512(_mm512_castps_si512(size), _mm512_and_si512(bit, _mm512_castps_si512(sign))));
}
SPILLWAY_INLINE F choose_less(F a, F b, F if_less, F otherwise) {  // a < b ? if_less : otherwise
  return _mm512_mask_mov_ps(otherwise, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), if_less);
}
SPILLWAY_INLINE F keep(F x, Full) { return x; }
SPILLWAY_INLINE F keep(F x, Mask m) { return _mm512_maskz_mov_ps(m, x); }  // dead lanes zero
SPILLWAY_INLINE D low_half(F x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }
SPILLWAY_INLINE D high_half(F x) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)); }
SPILLWAY_INLINE D splat_double(double x) { return _mm512_set1_pd(x); }
SPILLWAY_INLINE D fma(D a, D b, D c) { return _mm512_fmadd_pd(a, b, c); }
SPILLWAY_INLINE __m256 fold(F x) {
  return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
}
SPILLWAY_INLINE __m256 fold_max(F x) {
  return _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
}
SPILLWAY_INLINE __m256d fold(D x) {
  return _mm256_add_pd(_mm512_castpd512_pd256(x), _mm512_extractf64x4_pd(x, 1));
}

#else

constexpr int kLanes = 8;
using F = __m256;
using D = __m256d;
struct Mask {
  __m256i lanes;
  int live;
};

SPILLWAY_INLINE Mask tail(int64_t live) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const int n = static_cast<int>(live);
  return {_mm256_cmpgt_epi32(_mm256_set1_epi32(n), index), n};
}
SPILLWAY_INLINE F splat(float x) { return _mm256_set1_ps(x); }
SPILLWAY_INLINE F load(const float* p, Full) { return _mm256_loadu_ps(p); }
SPILLWAY_INLINE F load(const float* p, Mask m) { return _mm256_maskload_ps(p, m.lanes); }
SPILLWAY_INLINE void store(float* p, F x, Full) { _mm256_storeu_ps(p, x); }
SPILLWAY_INLINE void store(float* p, F x, Mask m) { _mm256_maskstore_ps(p, m.lanes, x); }

SPILLWAY_INLINE F widen(__m128i halves) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
// To nearest, ties to even; a NaN stays one (quiet).
SPILLWAY_INLINE __m128i narrow(F x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i words = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
SPILLWAY_INLINE F load(const Bf16* p, Full) {
  return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
SPILLWAY_INLINE F load(const Bf16* p, Mask m) {
  Bf16 part[kLanes] = {};
  for (int i = 0; i < m.live; ++i) part[i] = p[i];
  return load(part, Full{});
}
SPILLWAY_INLINE void store(Bf16* p, F x, Full) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(x));
}
SPILLWAY_INLINE void store(Bf16* p, F x, Mask m) {
  Bf16 part[kLanes];
  store(part, x, Full{});
  for (int i = 0; i < m.live; ++i) p[i] = part[i];
}

SPILLWAY_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
SPILLWAY_INLINE F sqrt(F x) { return _mm256_sqrt_ps(x); }
SPILLWAY_INLINE F min(F a, F b) { return _mm256_min_ps(a, b); }  // b where one is NaN
SPILLWAY_INLINE F max(F a, F b) { return _mm256_max_ps(a, b); }
SPILLWAY_INLINE F nearest(F x) {
  return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// x · 2ⁿ for whole n in [-252, 254] in two factors, exact but for overflow with the x in
// [0.5, 2] that exp() has.
SPILLWAY_INLINE F scale_by_power(F x, F n) {
  const __m256i all = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(all, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(all, half), bias), 23);
  return x * _mm256_castsi256_ps(first) * _mm256_castsi256_ps(second);
}
SPILLWAY_INLINE F magnitude(F x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
SPILLWAY_INLINE F with_sign(F size, F sign) {
  return _mm256_or_ps(size, _mm256_and_ps(_mm256_set1_ps(-0.0f), sign));
}
SPILLWAY_INLINE F choose_less(F a, F b, F if_less, F otherwise) {  // a < b ? if_less : otherwise
  return _mm256_blendv_ps(otherwise, if_less, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
SPILLWAY_INLINE F keep(F x, Full) { return x; }
SPILLWAY_INLINE F keep(F x, Mask m) {  // dead lanes zero
  return _mm256_and_ps(x, _mm256_castsi256_ps(m.lanes));
}
SPILLWAY_INLINE D low_half(F x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
SPILLWAY_INLINE D high_half(F x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }
SPILLWAY_INLINE D splat_double(double x) { return _mm256_set1_pd(x); }
SPILLWAY_INLINE D fma(D a, D b, D c) { return _mm256_fmadd_pd(a, b, c); }
SPILLWAY_INLINE __m256 fold(F x) { return x; }
SPILLWAY_INLINE __m256 fold_max(F x) { return x; }
SPILLWAY_INLINE __m256d fold(D x) { return x; }

#endif

// Sum and maximum over the lanes, by halves: an order that never changes.
SPILLWAY_INLINE float sum(F x) {
  const __m256 a = fold(x);
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}
SPILLWAY_INLINE float maximum(F x) {
  const __m256 a = fold_max(x);
  const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_shuffle_ps(c, c, 1)));
}
SPILLWAY_INLINE double sum(D x) {
  const __m256d a = fold(x);
  const __m128d b = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
  return _mm_cvtsd_f64(_mm_add_sd(b, _mm_unpackhi_pd(b, b)));
}

// eˣ, relative error < 2e-7: 2ⁿ·(1 + r + r²·q(r)), |r| ≤ ln 2 / 2. Overflows to infinity, is 0
// below -87.33 where denormals would begin (they cost a hundred cycles each), keeps NaN.
SPILLWAY_INLINE F exp(F given) {
  const F lowest = splat(-87.33f), x = min(splat(89.0f), max(lowest, given));
  const F n = nearest(x * splat(1.44269504f));
  F r = fma(n, splat(-0.693147182464599609f), x);
  r = fma(n, splat(1.90465429995e-9f), r);
  F q = splat(0.0013814598787576f);
  q = fma(q, r, splat(0.00836871657520533f));
  q = fma(q, r, splat(0.041668388992548f));
  q = fma(q, r, splat(0.16666521131992f));
  q = fma(q, r, splat(0.49999994039536f));
  const F power = scale_by_power(splat(1.0f) + fma(r * r, q, r), n);
  return choose_less(given, lowest, splat(0.0f), power);
}

// Relative error < 2e-7; keeps NaN and the sign of zero.
SPILLWAY_INLINE F tanh(F x) {
  const F size = magnitude(x), z = x * x;
  F q = splat(-0.00564831634983f);
  q = fma(q, z, splat(0.02058982662856f));
  q = fma(q, z, splat(-0.0537251271307f));
  q = fma(q, z, splat(0.1333127468824f));
  q = fma(q, z, splat(-0.333332747221f));
  const F near = fma(size * z, q, size);
  const F far = splat(1.0f) - splat(2.0f) / (exp(size + size) + splat(1.0f));
  return with_sign(choose_less(size, splat(0.625f), near, far), x);
}

// 1 / (1 + e⁻ˣ)
SPILLWAY_INLINE F sigmoid(F x) { return splat(1.0f) / (splat(1.0f) + exp(splat(0.0f) - x)); }

// body(offset, live) over n elements; `live` (Full or Mask) goes to load, store and keep.
template <class Body>
SPILLWAY_INLINE void strips(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, Full{});
  if (i < n) body(i, tail(n - i));
}

// Four partial sums, so that additions do not wait for each other.
struct Sums {
  F part[4];
};
SPILLWAY_INLINE Sums zero_sums() { return {{splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)}}; }
SPILLWAY_INLINE float sum(const Sums& s) {
  return sum((s.part[0] + s.part[1]) + (s.part[2] + s.part[3]));
}

// strips() with the number of the partial sum that the strip adds to: body(offset, live, p), p in
// 0…3, a function of n and the offset alone.
template <class Body>
SPILLWAY_INLINE void strips4(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    body(i, Full{}, 0);
    body(i + kLanes, Full{}, 1);
    body(i + 2 * kLanes, Full{}, 2);
    body(i + 3 * kLanes, Full{}, 3);
  }
  for (; i + kLanes <= n; i += kLanes) body(i, Full{}, 0);
  if (i < n) body(i, tail(n - i), 1);
}

}  // namespace
}  // namespace spillway::cpu::SPILLWAY_ISA
