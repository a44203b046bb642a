// Sampling runs on the CPU backend.
#pragma once

#include "graph/kernel_abi.h"

namespace spillway::cuda {

// Throws Error(bad_input) if the op is one of a decoding graph.
void refuse_decoding(const Attrs& attrs);

}  // namespace spillway::cuda
