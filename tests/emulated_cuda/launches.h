// Kernel launches as work on streams.
#pragma once

#include <set>
#include <string>

namespace spillway::emulated {

const std::set<std::string>& launching_sources();  // file names

}  // namespace spillway::emulated
