#include "train/version.h"

#include <fmt/core.h>
#include <spdlog/version.h>
#include <xxhash.h>

#include <nlohmann/json.hpp>

#include "kernels/cpu/isa.h"

namespace spillway {

std::string version_text() {
  return fmt::format(
      "spillway {}\nbackends: cpu\ninstruction set: {}\nnlohmann/json {}.{}.{}, spdlog "
      "{}.{}.{}, fmt {}, xxHash {}.{}.{}",
      SPILLWAY_VERSION, cpu::isa_name(), NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
      NLOHMANN_JSON_VERSION_PATCH, SPDLOG_VER_MAJOR, SPDLOG_VER_MINOR, SPDLOG_VER_PATCH,
      FMT_VERSION, XXH_VERSION_MAJOR, XXH_VERSION_MINOR, XXH_VERSION_RELEASE);
}

}  // namespace spillway
