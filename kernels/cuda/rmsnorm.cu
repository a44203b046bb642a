// rmsnorm and rmsnorm_grad: bounds and design stand in norm.cuh.
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/table.h"

namespace spillway::cuda {

void rmsnorm(const KernelArgs& args, const LaunchContext& context) {
  norm<NormKind::rms>(args, context.stream);
}
void rmsnorm_grad(const KernelArgs& args, const LaunchContext& context) {
  norm_grad<NormKind::rms>(args, context.stream);
}

}  // namespace spillway::cuda
