#include "kernels/cuda/workspace.h"

#include "base/error.h"

namespace spillway::cuda {

void* Workspace::take(int64_t bytes) {
  void* piece = at_;
  const int64_t whole = round_up(bytes, 256);
  if (whole > left_)
    internal_error("{}: its workspace is {} bytes short; the plan is not one for CUDA devices", op_,
                   whole - left_);
  at_ += whole;
  left_ -= whole;
  return piece;
}

}  // namespace spillway::cuda
