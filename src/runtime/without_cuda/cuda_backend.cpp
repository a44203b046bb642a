// Linked where src/runtime/cuda is not.
#include "runtime/backend.h"

namespace spillway {

const CudaBackend* cuda_backend() { return nullptr; }

}  // namespace spillway
