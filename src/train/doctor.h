// `train doctor`: what breaks runs most often, looked at where it is started (alone, under mpirun
// or srun), and how to mend it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/config.h"
#include "runtime/device.h"

namespace spillway {

enum class Health : int { ok, warning, error };

struct Check {
  std::string check;  // "cores", "output folder", …
  Health health = Health::ok;
  std::string found;
  std::string mend;        // what to do; "" if ok
  std::vector<int> ranks;  // that say so; filled where findings of all ranks come together
};

struct DoctorOptions {
  std::string config;            // path, or "": without a run in mind
  std::vector<std::string> set;  // overrides of it
  bool json = false;
};

// Prints the findings of all ranks as a table, or as JSON alone on standard output. Returns
// bad_input on all ranks if one is an error. Takes less than 20 s.
ExitCode doctor_command(const DoctorOptions& options);

}  // namespace spillway
