#include "kernels/cuda/rope_head.h"

#include "base/error.h"

namespace spillway::cuda {

void check_rotary_head(const Attrs& attrs, int most) {
  if (attrs.head_dim % 2 != 0 || attrs.head_dim > most)
    bad_input(
        "not supported yet: rotary positions on head size {} on the CUDA backend; it has them for "
        "even sizes up to {}",
        attrs.head_dim, most);
}

}  // namespace spillway::cuda
