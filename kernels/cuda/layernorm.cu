// layernorm and layernorm_grad: bounds and design stand in norm.cuh.
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/table.h"

namespace spillway::cuda {

void layernorm(const KernelArgs& args, const LaunchContext& context) {
  norm<NormKind::layer>(args, context.stream);
}
void layernorm_grad(const KernelArgs& args, const LaunchContext& context) {
  norm_grad<NormKind::layer>(args, context.stream);
}

}  // namespace spillway::cuda
