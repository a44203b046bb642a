#include "graph/ops/rank_sum.h"

#include <algorithm>

#include "kernels/reference/operands.h"
#include "kernels/reference/table.h"

namespace spillway::reference {

void rank_sum(const KernelArgs& args) {
  const Attrs& attrs = *args.attrs;
  const double* own = f64(args.in[0]);
  const double* staging = attrs.ranks > 1 ? f64(args.in[1]) : nullptr;
  const int64_t stride = attrs.ranks > 1 ? args.in[1].dims.count() / (attrs.ranks - 1) : 0;
  double* out = f64(args.out[0]);
  for (int64_t i = 0; i < args.in[0].dims.count(); ++i) {
    double sum = 0;
    for (int p = 0; p < attrs.ranks; p += attrs.inner) {
      double group = 0;
      for (int q = p; q < std::min(p + attrs.inner, attrs.ranks); ++q)
        group += q == attrs.rank ? own[i] : staging[(q < attrs.rank ? q : q - 1) * stride + i];
      sum += group;
    }
    out[i] = args.accumulate ? out[i] + sum : sum;
  }
}

}  // namespace spillway::reference
