#include "kernels/cuda/context.h"

#include "base/error.h"

namespace spillway::cuda {

void check_launch(cudaError_t error) {
  if (error == cudaSuccess) return;
  internal_error("the launch of a kernel failed: {} ({})", cudaGetErrorString(error),
                 cudaGetErrorName(error));
}

}  // namespace spillway::cuda
