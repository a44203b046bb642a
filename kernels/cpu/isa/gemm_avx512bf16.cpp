// bf16 through vdpbf16ps: two products an instruction and lane, added in f32.
#include "kernels/cpu/gemm_engine.h"
#include "kernels/cpu/isa/gemm_finish.h"
#include "kernels/cpu/isa/gemm_micro.h"
#include "kernels/cpu/isa/gemm_pack.h"

namespace spillway::cpu::SPILLWAY_ISA {
namespace {

SPILLWAY_INLINE F dot(F sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

void multiply(int64_t m, int64_t n, int64_t k, const void* a, const void* b, int64_t b_panel_bytes,
              float* c, int64_t ldc, bool accumulate) {
  const int64_t pairs = (k + 1) / 2;
  multiply_tiles(m, n, pairs, pairs * kTileRows * 4, a, b, b_panel_bytes, c, ldc, accumulate,
                 [](const char*& pa, const char*& pb, F s[kTileRows][2]) SPILLWAY_FLAT {
                   const __m512i b0 = _mm512_loadu_si512(pb), b1 = _mm512_loadu_si512(pb + 64);
                   const int32_t* column = reinterpret_cast<const int32_t*>(pa);
#pragma GCC unroll 16
                   for (int r = 0; r < kTileRows; ++r) {
                     const __m512i x = _mm512_set1_epi32(column[r]);
                     s[r][0] = dot(s[r][0], x, b0);
                     s[r][1] = dot(s[r][1], x, b1);
                   }
                   pa += kTileRows * 4;
                   pb += 128;
                 });
}

}  // namespace

const GemmEngine kGemmBf16 = {
    kTileRows, kTileColumns, 2, 2, 2, 512, 192, pack_a_by_k<Bf16, kTileRows>, pack_b_by_k<Bf16, 2>,
    multiply,  finish};

}  // namespace spillway::cpu::SPILLWAY_ISA
