#include "kernels/cpu/gemm.h"
#include "kernels/cpu/row_steps.h"
#include "kernels/cpu/table.h"

namespace spillway::cpu {
namespace {

// Decoding: so few rows that packing the weights would cost more than reading them as they lie.
constexpr int64_t kFewRows = 4;
constexpr int64_t kQuantum = 256;  // weight rows of a task

void multiply_few_rows(const KernelArgs& args, Scratch& scratch) {
  const TensorArg &a = args.in[0], &w = args.in[1], &y = args.out[0];
  const int64_t m = a.dims[0], n = w.dims[0], k = w.dims[1], size = size_of(a.dtype);
  const RowSteps& steps = isa() == Isa::avx2 ? avx2::kRowSteps : avx512::kRowSteps;
  const GemmEngine& engine = gemm_engine(a.dtype, isa());
  float* sums = scratch.take_array<float>(m * n);
  const float* bias = args.attrs->bias ? args.in[2].as<float>() : nullptr;
  for_quanta(ceil_div(n, kQuantum), [&](int64_t q) {
    const int64_t j = q * kQuantum, columns = std::min(kQuantum, n - j);
    for (int64_t i = 0; i < m; ++i)
      steps.row_dots(columns, k, a.dtype, w.as<char>() + j * k * size, k,
                     a.as<char>() + i * k * size, 0, sums + i * n + j);
    engine.finish(m, columns, sums + j, n, bias ? bias + j : nullptr, false,
                  y.as<char>() + j * size_of(y.dtype), y.dtype, n);
  });
}

}  // namespace

void matmul(const KernelArgs& args) {
  const TensorArg &a = args.in[0], &w = args.in[1], &y = args.out[0];
  Scratch scratch("matmul", args.workspace, args.workspace_bytes);
  if (a.dims[0] <= kFewRows) {
    multiply_few_rows(args, scratch);
    return;
  }
  gemm({.m = a.dims[0],
        .n = w.dims[0],
        .k = a.dims[1],
        .dtype = a.dtype,
        .a = {a.data, a.dims[1], 1},
        .b = {w.data, 1, w.dims[1]},
        .c = y.data,
        .c_dtype = y.dtype,
        .ldc = w.dims[0],
        .bias = args.attrs->bias ? args.in[2].as<float>() : nullptr},
       scratch);
}

void matmul_dinput(const KernelArgs& args) {
  const TensorArg &dy = args.in[0], &w = args.in[1], &dx = args.out[0];
  Scratch scratch("matmul_dinput", args.workspace, args.workspace_bytes);
  gemm({.m = dy.dims[0],
        .n = w.dims[1],
        .k = w.dims[0],
        .dtype = dy.dtype,
        .a = {dy.data, dy.dims[1], 1},
        .b = {w.data, w.dims[1], 1},
        .c = dx.data,
        .c_dtype = dx.dtype,
        .ldc = w.dims[1]},
       scratch);
}

void matmul_dweight(const KernelArgs& args) {
  const TensorArg &dy = args.in[0], &a = args.in[1], &dw = args.out[0];
  Scratch scratch("matmul_dweight", args.workspace, args.workspace_bytes);
  gemm({.m = dy.dims[1],
        .n = a.dims[1],
        .k = dy.dims[0],
        .dtype = dy.dtype,
        .a = {dy.data, 1, dy.dims[1]},
        .b = {a.data, a.dims[1], 1},
        .c = dw.data,
        .c_dtype = Dtype::f32,
        .ldc = a.dims[1],
        .accumulate = args.accumulate},
       scratch);
}

}  // namespace spillway::cpu
