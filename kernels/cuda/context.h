// What a CUDA kernel's host part is given besides its operands.
#pragma once

#include <cuda_runtime_api.h>

#include "graph/kernel_abi.h"

namespace spillway::cuda {

class Gemm;  // kernels/cuda/gemm.h

struct LaunchContext {
  cudaStream_t stream = nullptr;
  Gemm* gemm = nullptr;
  int sm_count = 0;  // of the device; for the shape of grids, never for the order of sums
};

// Enqueues one op on context.stream; neither allocates nor synchronises. Operands and workspace are
// device memory; `args.attrs` is host memory and read before the call returns. Buffers are 256-byte
// aligned, but an operand may start at any element of one.
using CudaKernel = void (*)(const KernelArgs& args, const LaunchContext& context);

// Throws Error(internal) with CUDA's text unless a launch was accepted.
void check_launch(cudaError_t error);

}  // namespace spillway::cuda
