// The instruction that the host is issuing: the innermost NVTX range of the calling thread.
#pragma once

#include <string>

namespace spillway::emulated::nvtx {

std::string innermost_range();  // "": none

}  // namespace spillway::emulated::nvtx
