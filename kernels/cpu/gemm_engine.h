// The three steps of every matrix product of the CPU backend, once per instruction set and dtype:
// pack a block of A, pack a block of B, multiply packed blocks. Single-threaded; gemm.h and the
// attention kernels cut the work. Included by variant files: no std templates.
//
// For each element of C the products are added in ascending order of k, whatever the block's size
// or place, so results depend neither on the number of threads nor on how M and N are cut.
#pragma once

#include <stdint.h>

#include "base/dtype.h"
#include "kernels/cpu/isa.h"

namespace spillway::cpu {

struct GemmEngine {
  int32_t rows;        // A is packed in panels of this many rows (the last one padded with zeros)
  int32_t columns;     // B in panels of this many columns
  int32_t k_multiple;  // k is padded with zeros to a multiple of it
  int32_t a_bytes, b_bytes;  // of one packed element
  int32_t k_chunk, m_chunk;  // blocks that suit the caches

  // A[m, k], element (i, p) at a + i·row + p·column elements; row or column is 1. Writes
  // round_up(m, rows)·round_up(k, k_multiple)·a_bytes bytes.
  void (*pack_a)(const void* a, int64_t row, int64_t column, int64_t m, int64_t k, void* to);
  // B[k, n], element (p, j) at b + p·row + j·column. Panel q starts at to + q·panel_bytes; within a
  // panel k·columns·b_bytes is where k's row begins (k a multiple of k_multiple).
  void (*pack_b)(const void* b, int64_t row, int64_t column, int64_t k, int64_t n, void* to,
                 int64_t panel_bytes);
  // C[m, n] (f32, rows ldc apart) = or += A·B, of packed operands.
  void (*multiply)(int64_t m, int64_t n, int64_t k, const void* a, const void* b,
                   int64_t panel_bytes, float* c, int64_t ldc, bool accumulate);
  // C[m, n] of `dtype` = or += sums (+ bias); sums may be C.
  void (*finish)(int64_t m, int64_t n, const float* sums, int64_t stride, const float* bias,
                 bool accumulate, void* c, Dtype dtype, int64_t ldc);
};

constexpr int64_t packed_a_bytes(const GemmEngine& e, int64_t m, int64_t k) {
  return round_up(m, e.rows) * round_up(k, e.k_multiple) * e.a_bytes;
}
constexpr int64_t panel_bytes(const GemmEngine& e, int64_t k) {
  return round_up(k, e.k_multiple) * e.columns * e.b_bytes;
}
constexpr int64_t packed_b_bytes(const GemmEngine& e, int64_t k, int64_t n) {
  return ceil_div(n, e.columns) * panel_bytes(e, k);
}

// For operands of `dtype` (f32 or bf16) on `isa`.
const GemmEngine& gemm_engine(Dtype dtype, Isa isa);

namespace avx2 {
extern const GemmEngine kGemmF32, kGemmBf16;
}
namespace avx512 {
extern const GemmEngine kGemmF32, kGemmBf16;
}
namespace avx512bf16 {
extern const GemmEngine kGemmBf16;
}
namespace amx {
extern const GemmEngine kGemmBf16;
}

}  // namespace spillway::cpu
