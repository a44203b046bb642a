// Errors that the environment asks for, limits of the emulated machine, and counts of calls.
#pragma once

#include <cstdint>
#include <string>

namespace spillway::emulated::faults {

// Counts the call and says whether it is to fail: SPILLWAY_EMULATED_FAIL is "<function>:<n>" or
// "any:<n>" (counted from 1), on the rank of SPILLWAY_EMULATED_FAIL_RANK if that is set.
bool strikes(const char* function);
int64_t& calls();  // made so far, of all functions

struct Limits {
  int64_t device_bytes;    // SPILLWAY_EMULATED_DEVICE_BYTES
  int64_t pinned_bytes;    // SPILLWAY_EMULATED_PINNED_BYTES
  int64_t foreign_bytes;   // SPILLWAY_EMULATED_FOREIGN_BYTES: used by driver and libraries
  int64_t foreign_growth;  // SPILLWAY_EMULATED_FOREIGN_GROWTH: more at each cudaMemGetInfo
};
const Limits& limits();

}  // namespace spillway::emulated::faults
