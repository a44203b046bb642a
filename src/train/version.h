#pragma once

#include <string>

namespace spillway {

// Version, backends, instruction set, library versions, one a line.
std::string version_text();

}  // namespace spillway
