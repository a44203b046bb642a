#include "kernels/cpu/row_steps.h"

#include <math.h>

#include "kernels/cpu/isa/vec.h"

namespace spillway::cpu::SPILLWAY_ISA {
namespace {

// log of a sum of exponentials: f64, so that a row's loss keeps all that its f32 sum holds.
SPILLWAY_INLINE double log_of(float x) { return ::log(static_cast<double>(x)); }

constexpr float kLowest = -3.402823466e38f;

// Dead lanes become `value`.
SPILLWAY_INLINE F fill_dead(F x, F, Full) { return x; }
#ifdef __AVX512F__
SPILLWAY_INLINE F fill_dead(F x, F value, Mask m) { return _mm512_mask_mov_ps(value, m, x); }
#else
SPILLWAY_INLINE F fill_dead(F x, F value, Mask m) {
  return _mm256_blendv_ps(value, x, _mm256_castsi256_ps(m.lanes));
}
#endif

SPILLWAY_INLINE float row_maximum(const float* row, int64_t n) {
  F most[4];
  for (F& m : most) m = splat(kLowest);
  strips4(n, [&](int64_t i, auto live, int p) SPILLWAY_FLAT {
    most[p] = max(fill_dead(load(row + i, live), splat(kLowest), live), most[p]);
  });
  return maximum(max(max(most[0], most[1]), max(most[2], most[3])));
}

template <class T>
SPILLWAY_INLINE void zero(T* row, int64_t begin, int64_t end) {
  strips(end - begin,
         [=](int64_t i, auto live) SPILLWAY_FLAT { store(row + begin + i, splat(0.0f), live); });
}

template <class T>
void softmax_as(int64_t rows, int64_t columns, int64_t live, float scale, const float* scores,
                int64_t stride, T* p, int64_t p_stride, float* sums, float* lse) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* s = scores + r * stride;
    T* to = p + r * p_stride;
    const int64_t n = live + r < columns ? live + r : columns;
    const float most = scale * row_maximum(s, n);
    const F shift = splat(-most), factor = splat(scale);
    Sums total = zero_sums();
    strips4(n, [&](int64_t i, auto part, int x) SPILLWAY_FLAT {
      const F e = exp(fma(load(s + i, part), factor, shift));
      total.part[x] = total.part[x] + keep(e, part);
      store(to + i, e, part);
    });
    zero(to, n, columns);
    sums[r] = sum(total);
    lse[r] = static_cast<float>(most + log_of(sums[r]));
  }
}

void softmax(int64_t rows, int64_t columns, int64_t live, float scale, const float* scores,
             int64_t stride, void* p, Dtype dtype, int64_t p_stride, float* sums, float* lse) {
  if (dtype == Dtype::f32)
    softmax_as(rows, columns, live, scale, scores, stride, static_cast<float*>(p), p_stride, sums,
               lse);
  else
    softmax_as(rows, columns, live, scale, scores, stride, static_cast<Bf16*>(p), p_stride, sums,
               lse);
}

template <class T>
void divide_as(int64_t rows, int64_t columns, const float* sums, int64_t stride,
               const float* divisor, T* out, int64_t out_stride) {
  // Rows of one head are far apart in memory, which no hardware prefetcher follows.
  constexpr int64_t kAhead = 8;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < columns && r + kAhead < rows; i += 64 / static_cast<int>(sizeof(T)))
      __builtin_prefetch(out + (r + kAhead) * out_stride + i, 1);
    const F factor = splat(divisor ? 1.0f / divisor[r] : 1.0f);
    strips(columns, [&](int64_t i, auto live) SPILLWAY_FLAT {
      store(out + r * out_stride + i, load(sums + r * stride + i, live) * factor, live);
    });
  }
}

void divide(int64_t rows, int64_t columns, const float* sums, int64_t stride, const float* divisor,
            void* out, Dtype dtype, int64_t out_stride) {
  if (dtype == Dtype::f32)
    divide_as(rows, columns, sums, stride, divisor, static_cast<float*>(out), out_stride);
  else
    divide_as(rows, columns, sums, stride, divisor, static_cast<Bf16*>(out), out_stride);
}

template <class T>
SPILLWAY_INLINE float dot(const T* a, const T* b, int64_t n) {
  Sums total = zero_sums();
  strips4(n, [&](int64_t i, auto live, int p) SPILLWAY_FLAT {
    total.part[p] = fma(load(a + i, live), load(b + i, live), total.part[p]);
  });
  return sum(total);
}

void row_dots(int64_t rows, int64_t columns, Dtype dtype, const void* a, int64_t a_stride,
              const void* b, int64_t b_stride, float* out) {
  for (int64_t r = 0; r < rows; ++r)
    out[r] = dtype == Dtype::f32 ? dot(static_cast<const float*>(a) + r * a_stride,
                                       static_cast<const float*>(b) + r * b_stride, columns)
                                 : dot(static_cast<const Bf16*>(a) + r * a_stride,
                                       static_cast<const Bf16*>(b) + r * b_stride, columns);
}

template <class T>
void softmax_grad_as(int64_t rows, int64_t columns, int64_t live, float scale, const float* s,
                     const float* dp, int64_t stride, const float* lse, const float* dots, T* p,
                     T* ds, int64_t p_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t reach = live + r < 0 ? 0 : live + r;
    const int64_t n = reach < columns ? reach : columns;
    const F factor = splat(scale), shift = splat(-lse[r]), mean = splat(dots[r]);
    strips(n, [&](int64_t i, auto part) SPILLWAY_FLAT {
      const F e = exp(fma(load(s + r * stride + i, part), factor, shift));
      const F d = load(dp + r * stride + i, part) - mean;
      store(p + r * p_stride + i, e, part);
      store(ds + r * p_stride + i, e * factor * d, part);
    });
    zero(p + r * p_stride, n, columns);
    zero(ds + r * p_stride, n, columns);
  }
}

void softmax_grad(int64_t rows, int64_t columns, int64_t live, float scale, const float* s,
                  const float* dp, int64_t stride, const float* lse, const float* dots, void* p,
                  void* ds, Dtype dtype, int64_t p_stride) {
  if (dtype == Dtype::f32)
    softmax_grad_as(rows, columns, live, scale, s, dp, stride, lse, dots, static_cast<float*>(p),
                    static_cast<float*>(ds), p_stride);
  else
    softmax_grad_as(rows, columns, live, scale, s, dp, stride, lse, dots, static_cast<Bf16*>(p),
                    static_cast<Bf16*>(ds), p_stride);
}

template <class T>
void attend_as(const T* q, const T* k, const T* v, int64_t stride, int64_t keys, int64_t head_dim,
               float scale, float* scores, float* sums, T* out) {
  for (int64_t j = 0; j < keys; ++j) scores[j] = dot(q, k + j * stride, head_dim);
  float total, lse;
  softmax_as(1, keys, keys, scale, scores, keys, scores, keys, &total, &lse);
  zero(sums, 0, head_dim);
  for (int64_t j = 0; j < keys; ++j) {
    const F weight = splat(scores[j]);
    strips(head_dim, [&](int64_t i, auto live) SPILLWAY_FLAT {
      store(sums + i, fma(weight, load(v + j * stride + i, live), load(sums + i, live)), live);
    });
  }
  divide_as(1, head_dim, sums, head_dim, &total, out, head_dim);
}

void attend(const void* q, const void* k, const void* v, Dtype dtype, int64_t stride, int64_t keys,
            int64_t head_dim, float scale, float* scores, float* sums, void* out) {
  if (dtype == Dtype::f32)
    attend_as(static_cast<const float*>(q), static_cast<const float*>(k),
              static_cast<const float*>(v), stride, keys, head_dim, scale, scores, sums,
              static_cast<float*>(out));
  else
    attend_as(static_cast<const Bf16*>(q), static_cast<const Bf16*>(k), static_cast<const Bf16*>(v),
              stride, keys, head_dim, scale, scores, sums, static_cast<Bf16*>(out));
}

double nll(const float* logits, int64_t vocab, int64_t target) {
  if (target < 0) return 0;
  const float most = row_maximum(logits, vocab);
  const F shift = splat(most);
  Sums total = zero_sums();
  strips4(vocab, [&](int64_t i, auto live, int p) SPILLWAY_FLAT {
    total.part[p] = total.part[p] + keep(exp(load(logits + i, live) - shift), live);
  });
  return static_cast<double>(most) + log_of(sum(total)) - static_cast<double>(logits[target]);
}

SPILLWAY_INLINE void store_one(float* to, float x) { *to = x; }
SPILLWAY_INLINE void store_one(Bf16* to, float x) { store(to, splat(x), tail(1)); }

template <class T>
double nll_grad_as(float* logits, int64_t vocab, int64_t padded, int64_t target, float scale,
                   T* d) {
  if (target < 0) {
    zero(d, 0, padded);
    return 0;
  }
  const float wanted = logits[target], most = row_maximum(logits, vocab);
  const F shift = splat(most);
  Sums total = zero_sums();
  strips4(vocab, [&](int64_t i, auto live, int p) SPILLWAY_FLAT {
    const F e = exp(load(logits + i, live) - shift);
    total.part[p] = total.part[p] + keep(e, live);
    store(logits + i, e, live);
  });
  const float sum_of_all = sum(total);
  const F factor = splat(scale / sum_of_all);
  const float right = logits[target] * (scale / sum_of_all) - scale;
  strips(vocab, [&](int64_t i, auto live)
                    SPILLWAY_FLAT { store(d + i, load(logits + i, live) * factor, live); });
  store_one(d + target, right);
  zero(d, vocab, padded);
  return static_cast<double>(most) + log_of(sum_of_all) - static_cast<double>(wanted);
}

double nll_grad(float* logits, int64_t vocab, int64_t padded, int64_t target, float scale, void* d,
                Dtype dtype) {
  return dtype == Dtype::f32
             ? nll_grad_as(logits, vocab, padded, target, scale, static_cast<float*>(d))
             : nll_grad_as(logits, vocab, padded, target, scale, static_cast<Bf16*>(d));
}

}  // namespace

const RowSteps kRowSteps = {softmax, divide, row_dots, softmax_grad, attend, nll, nll_grad};

}  // namespace spillway::cpu::SPILLWAY_ISA
