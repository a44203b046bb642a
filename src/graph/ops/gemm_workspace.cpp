#include "graph/ops/gemm_workspace.h"

#include <algorithm>

namespace spillway {

int64_t gemm_workspace(int64_t m, int64_t n, int64_t k, Dtype a, Dtype b, Dtype c, int threads) {
  // B is packed as a whole, in panels of up to 32 columns, k padded to at most a multiple of 32.
  const int64_t packed_b = round_up(n, 32) * round_up(k, 32) * size_of(b);
  // A thread packs a block of A, 512 of k at most, and 192 rows of 4 bytes or 384 of 2.
  const int64_t block_k = std::min<int64_t>(round_up(k, 32), 512);
  const int64_t block_a = std::max(std::min<int64_t>(round_up(m, 12), 192) * 4,
                                   std::min<int64_t>(round_up(m, 32), 384) * size_of(a)) *
                          block_k;
  // It adds up a block of C that it could not add to in place.
  const int64_t rows = c == Dtype::f32 && a == Dtype::f32 ? 192 : 384;
  const int64_t sums =
      std::min<int64_t>(round_up(m, 96), rows) * (std::min<int64_t>(round_up(n, 32), 512) + 16) * 4;
  return round_up(packed_b, 64) + threads * (round_up(block_a, 64) + round_up(sums, 64)) + 64;
}

}  // namespace spillway
