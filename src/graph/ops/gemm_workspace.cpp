#include "graph/ops/gemm_workspace.h"

namespace spillway {

int64_t gemm_workspace(int64_t m, int64_t n, int64_t k, Dtype a, Dtype b, Dtype c, int threads) {
  const int64_t rm = round_up(m, 64), rn = round_up(n, 64), rk = round_up(k, 64);
  const int64_t packed_b = rn * rk * size_of(b);
  // A transposed first factor is copied block by block; libraries keep such copies per thread, but
  // together never more than the whole of it and one block of rows a thread.
  const int64_t copied_a = rm * rk * size_of(a) + threads * 64 * rk * size_of(a);
  // Results that are narrower than f32 are accumulated in f32 tiles of the threads.
  const int64_t tiles = threads * int64_t{128} * rn * (c == Dtype::f32 ? 1 : 4);
  const int64_t fixed = 64 * 1024 + threads * int64_t{64} * 1024;
  return round_up(packed_b + copied_a + tiles + fixed, 64);
}

}  // namespace spillway
