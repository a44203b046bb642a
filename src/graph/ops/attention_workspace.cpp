#include "graph/ops/attention_workspace.h"

namespace spillway {

int64_t attention_workspace(const Attrs& attrs, Dtype dtype, int threads, bool gradient) {
  const int64_t context = round_up(attrs.context, 64), d = round_up(attrs.head_dim, 64);
  const int64_t element = dtype == Dtype::f32 ? 4 : 4 + size_of(dtype);
  const int64_t scores = context * context * element * (gradient ? 2 : 1);
  const int64_t packed = context * d * element * (gradient ? 8 : 4);
  const int64_t rows = 4 * context * 4;
  return round_up((scores + packed + rows + 64 * 1024) * threads, 64);
}

}  // namespace spillway
