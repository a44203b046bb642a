// The kernels of the CUDA backend, one per op of graph/op_list.h (whose headers state operands and
// meaning).
#pragma once

#include "kernels/cuda/context.h"

namespace spillway::cuda {

#define OP(name) void name(const KernelArgs& args, const LaunchContext& context);
#include "graph/op_list.h"

CudaKernel kernel(OpKind kind);

}  // namespace spillway::cuda
