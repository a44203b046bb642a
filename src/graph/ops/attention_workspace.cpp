#include "graph/ops/attention_workspace.h"

#include <algorithm>

namespace spillway {

int64_t attention_workspace(const Attrs& attrs, Dtype dtype, int threads, bool gradient) {
  const int64_t c = round_up(attrs.context, 32), d = round_up(attrs.head_dim, 32);
  const int64_t size = size_of(dtype), narrow = dtype == Dtype::f32 ? 0 : size;
  // Blocks of query rows, in a whole number of the matrix engines' panels.
  const int64_t rows = gradient ? 96 : 48;
  const int64_t columns = (gradient ? std::min<int64_t>(c, 512) : c) + 32;
  const int64_t scores = rows * columns * (4 + narrow);
  const int64_t packed_scores = rows * (columns + 12) * 4, packed_rows = rows * d * 4;
  int64_t bytes;
  if (gradient) {
    bytes = 3 * c * d * size   // kᵀ, vᵀ, k
            + 4 * packed_rows  // q and do, each as either factor
            + 2 * scores       // scores and their gradient
            + packed_scores    // either of them
            + rows * d * 4     // dq
            + 2 * c * d * 4    // dk, dv
            + rows * 4;        // Σ o·do
  } else {
    bytes = 2 * c * d * size + packed_rows + scores + packed_scores + rows * d * 4 + rows * 4;
  }
  constexpr int64_t kParts = 20;  // each begins at a multiple of 64 bytes
  return threads * round_up(bytes + kParts * 64, 64);
}

}  // namespace spillway
