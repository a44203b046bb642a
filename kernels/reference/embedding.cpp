#include "graph/ops/embedding.h"

#include "kernels/reference/operands.h"
#include "kernels/reference/table.h"

namespace spillway::reference {

void embedding(const KernelArgs& args) {
  const double* table = f64(args.in[0]);
  const int32_t* tokens = i32(args.in[1]);
  const double* positions = args.attrs->bias ? f64(args.in[2]) : nullptr;
  double* x = f64(args.out[0]);
  const int64_t rows = args.out[0].dims.rows(), h = args.out[0].dims.last();
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < h; ++i) {
      x[r * h + i] = table[tokens[r] * h + i];
      if (positions) x[r * h + i] += positions[position_of(args, r) * h + i];
    }
}

void embedding_grad(const KernelArgs& args) {
  const double* dx = f64(args.in[0]);
  const int32_t* order = i32(args.in[1]);
  const int32_t* tokens = i32(args.in[2]);
  const int64_t rows = args.in[0].dims.rows(), h = args.in[0].dims.last();
  begin_sum(args, args.out[0]);
  double* dtable = f64(args.out[0]);
  for (int64_t j = 0; j < rows; ++j) {
    const int64_t r = order[j];
    for (int64_t i = 0; i < h; ++i) dtable[tokens[r] * h + i] += dx[r * h + i];
  }
  if (!args.attrs->bias) return;
  begin_sum(args, args.out[1]);
  double* dpositions = f64(args.out[1]);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < h; ++i) dpositions[position_of(args, r) * h + i] += dx[r * h + i];
}

}  // namespace spillway::reference
