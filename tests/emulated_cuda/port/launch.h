// Launches for kernels that g++ compiles.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <tuple>
#include <type_traits>

#include "tests/emulated_cuda/block.h"

namespace spillway::emulated {

// Puts a launch on a stream; `arguments` are kept until it has run.
cudaError_t enqueue_launch(const Launch& launch, std::shared_ptr<const void> arguments,
                           cudaStream_t stream);

}  // namespace spillway::emulated
