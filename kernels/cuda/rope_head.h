// Head sizes that rope.cu has kernels for.
#pragma once

#include "graph/kernel_abi.h"

namespace spillway::cuda {

// Throws Error(bad_input) unless attrs.head_dim is even and at most `most`.
void check_rotary_head(const Attrs& attrs, int most);

}  // namespace spillway::cuda
