#include "kernels/cuda/table.h"

namespace spillway::cuda {

CudaKernel kernel(OpKind kind) {
  static constexpr CudaKernel kTable[] = {
#define OP(name) name,
#include "graph/op_list.h"
  };
  return kTable[static_cast<int>(kind)];
}

}  // namespace spillway::cuda
