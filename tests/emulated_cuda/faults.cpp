#include "faults.h"

#include <cstdlib>

namespace spillway::emulated::faults {
namespace {

int64_t number(const char* variable, int64_t otherwise) {
  const char* set = std::getenv(variable);
  return set ? std::strtoll(set, nullptr, 10) : otherwise;
}

struct Wanted {
  Wanted() {
    const char* set = std::getenv("SPILLWAY_EMULATED_FAIL");
    const char* rank = std::getenv("SPILLWAY_EMULATED_FAIL_RANK");
    const char* own = std::getenv("OMPI_COMM_WORLD_RANK");
    if (!set || (rank && std::string(rank) != (own ? own : "0"))) return;
    const std::string text = set;
    const size_t colon = text.rfind(':');
    function = text.substr(0, colon);
    call = colon == std::string::npos ? 1 : std::atoll(text.c_str() + colon + 1);
  }
  std::string function;
  int64_t call = 0;
};

}  // namespace

int64_t& calls() {
  static int64_t made = 0;
  return made;
}

bool strikes(const char* function) {
  ++calls();
  static const Wanted wanted;
  static int64_t seen = 0;
  if (wanted.call == 0 || (wanted.function != "any" && wanted.function != function)) return false;
  return ++seen == wanted.call;
}

const Limits& limits() {
  constexpr int64_t kMiB = 1 << 20;
  static const Limits from_environment = {
      .device_bytes = number("SPILLWAY_EMULATED_DEVICE_BYTES", 8192 * kMiB),
      .pinned_bytes = number("SPILLWAY_EMULATED_PINNED_BYTES", 8192 * kMiB),
      .foreign_bytes = number("SPILLWAY_EMULATED_FOREIGN_BYTES", 300 * kMiB),
      .foreign_growth = number("SPILLWAY_EMULATED_FOREIGN_GROWTH", 0),
  };
  return from_environment;
}

}  // namespace spillway::emulated::faults
