// What attention and the loss do with rows of scores between their matrix products, once per
// instruction set. Single-threaded. Pointers of type void hold values of the named dtype.
#pragma once

#include <stdint.h>

#include "base/dtype.h"

namespace spillway::cpu {

struct RowSteps {
  // Rows r of `scores` (f32, rows `stride` apart): p = exp(scale·s − max) over the first live + r
  // columns (at most `columns`), 0 in the others up to `columns`, stored as `dtype` in `p`, rows
  // `p_stride` elements apart (may be `scores` if f32). sums[r] = Σ of exponentials before
  // rounding, lse[r] = max + log(sum).
  void (*softmax)(int64_t rows, int64_t columns, int64_t live, float scale, const float* scores,
                  int64_t stride, void* p, Dtype dtype, int64_t p_stride, float* sums, float* lse);
  // out[r, j] = sums[r, j] / divisor[r], j < columns; no divisor: a conversion.
  void (*divide)(int64_t rows, int64_t columns, const float* sums, int64_t stride,
                 const float* divisor, void* out, Dtype dtype, int64_t out_stride);
  // dot[r] = Σ_j a[r, j]·b[r, j]
  void (*row_dots)(int64_t rows, int64_t columns, Dtype dtype, const void* a, int64_t a_stride,
                   const void* b, int64_t b_stride, float* dot);
  // Rows r, columns below live + r: p = exp(scale·s − lse[r]), ds = scale·p·(dp − dot[r]), rounded
  // to `dtype`; the others up to `columns` become 0. s and dp share `stride`, p and ds `p_stride`;
  // p may be s, and ds dp, if f32.
  void (*softmax_grad)(int64_t rows, int64_t columns, int64_t live, float scale, const float* s,
                       const float* dp, int64_t stride, const float* lse, const float* dot, void* p,
                       void* ds, Dtype dtype, int64_t p_stride);
  // One query over `keys` rows of a cache (rows `stride` elements apart); scores: keys f32, sums:
  // head_dim f32.
  void (*attend)(const void* q, const void* k, const void* v, Dtype dtype, int64_t stride,
                 int64_t keys, int64_t head_dim, float scale, float* scores, float* sums,
                 void* out);
  // Returns −log softmax(logits[0 … vocab))[target].
  double (*nll)(const float* logits, int64_t vocab, int64_t target);
  // The same, and d = scale·(softmax − onehot(target)) in `dtype` (may be logits if f32), 0 from
  // vocab up to padded. target < 0: all of d is 0, and so is the result.
  double (*nll_grad)(float* logits, int64_t vocab, int64_t padded, int64_t target, float scale,
                     void* d, Dtype dtype);
};

namespace avx2 {
extern const RowSteps kRowSteps;
}
namespace avx512 {
extern const RowSteps kRowSteps;
}

}  // namespace spillway::cpu
