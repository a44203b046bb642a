// Kernel launches as work on streams.
#pragma once

#include <vector>

namespace spillway::emulated {

std::vector<const void*> launched_kernels();  // their code, each once

}  // namespace spillway::emulated
