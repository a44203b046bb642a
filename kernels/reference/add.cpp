#include "graph/ops/add.h"

#include "kernels/reference/operands.h"
#include "kernels/reference/table.h"

namespace spillway::reference {

void add(const KernelArgs& args) {
  const double* a = f64(args.in[0]);
  const double* b = f64(args.in[1]);
  double* sum = f64(args.out[0]);
  for (int64_t i = 0; i < args.in[0].dims.count(); ++i) sum[i] = a[i] + b[i];
}

}  // namespace spillway::reference
