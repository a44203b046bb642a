// matmul, matmul_dinput, matmul_dweight: cuBLASLt (gemm.h), which is bound by FLOPs wherever a step
// spends its time. The library adds a bias only in the dtype of its result, so the bias is rounded
// into the workspace first: n elements, a launch's fixed cost.
#include <device_port.cuh>

#include "kernels/cuda/context.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/cuda/workspace.h"

namespace spillway::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) copy_bias(int64_t n, const float* bias, T* to) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) put(to + i, bias[i]);
}

template <class T>
void* copied_bias(int64_t n, const float* bias, Workspace& workspace, cudaStream_t stream) {
  T* to = workspace.take_array<T>(n);
  launch(copy_bias<T>, blocks_for(n, kThreads), dim3(kThreads), 0, stream, n, bias, to);
  return to;
}

}  // namespace

void matmul(const KernelArgs& args, const LaunchContext& context) {
  const TensorArg &a = args.in[0], &w = args.in[1], &y = args.out[0];
  Workspace workspace("matmul", args);
  GemmCall call = {.m = a.dims[0],
                   .n = w.dims[0],
                   .k = a.dims[1],
                   .dtype = a.dtype,
                   .a = a.data,
                   .b = w.data,
                   .b_transposed = true,
                   .c = y.data,
                   .c_dtype = y.dtype,
                   .workspace = workspace.take(context.gemm->workspace_bytes())};
  if (args.attrs->bias) {
    // Copied in f32 too: the address of a parameter depends on where it lies, the workspace's does
    // not, and alignment may decide over the algorithm.
    const float* bias = args.in[2].as<float>();
    call.bias = y.dtype == Dtype::f32 ? copied_bias<float>(call.n, bias, workspace, context.stream)
                                      : copied_bias<Bf16>(call.n, bias, workspace, context.stream);
  }
  context.gemm->run(call, context.stream);
}

void matmul_dinput(const KernelArgs& args, const LaunchContext& context) {
  const TensorArg &dy = args.in[0], &w = args.in[1], &dx = args.out[0];
  Workspace workspace("matmul_dinput", args);
  context.gemm->run({.m = dy.dims[0],
                     .n = w.dims[1],
                     .k = w.dims[0],
                     .dtype = dy.dtype,
                     .a = dy.data,
                     .b = w.data,
                     .c = dx.data,
                     .c_dtype = dx.dtype,
                     .workspace = workspace.take(context.gemm->workspace_bytes())},
                    context.stream);
}

void matmul_dweight(const KernelArgs& args, const LaunchContext& context) {
  const TensorArg &dy = args.in[0], &a = args.in[1], &dw = args.out[0];
  Workspace workspace("matmul_dweight", args);
  context.gemm->run({.m = dy.dims[1],
                     .n = a.dims[1],
                     .k = dy.dims[0],
                     .dtype = dy.dtype,
                     .a = dy.data,
                     .a_transposed = true,
                     .b = a.data,
                     .c = dw.data,
                     .c_dtype = Dtype::f32,
                     .accumulate = args.accumulate,
                     .workspace = workspace.take(context.gemm->workspace_bytes())},
                    context.stream);
}

}  // namespace spillway::cuda
