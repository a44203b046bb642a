#include "kernels/cpu/gemm.h"
#include "kernels/cpu/table.h"

namespace spillway::cpu {

void matmul(const KernelArgs& args) {
  const TensorArg &a = args.in[0], &w = args.in[1], &y = args.out[0];
  Scratch scratch("matmul", args.workspace, args.workspace_bytes);
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
