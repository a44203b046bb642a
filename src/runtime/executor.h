// Walks a program's instructions and gives them to the device's lanes, exactly as planned.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "program/program.h"
#include "runtime/device.h"

namespace spillway {

// Owns nothing but its tables; allocates them in the constructor and nothing afterwards.
class Executor {
 public:
  // Reserves both arenas of `layout` on the device. `set` and `layout` outlive the executor.
  Executor(const ProgramSet& set, const ArenaLayout& layout, Device& device);

  // Issues one run of a program: asynchronous; programs follow each other in order. Returns when
  // everything is issued (lane queues are bounded, so this may block while they are full).
  // `micro_override` ≥ 0 replaces the micro-batch index (evaluate).
  void run(int program, int micro_override = -1);

  // Blocks until what was issued so far has run; rethrows a lane's error with instruction and step.
  void finish();

  void* address(BufferId buffer, int32_t version = 0, int64_t offset = 0) const;
  Device& device() { return device_; }

  // For test builds: after every instruction instance whose buffer bytes die there, fill them with
  // 0xFF (NaN); delays copy lanes by a seeded random time up to `max_delay_us`.
  struct Chaos {
    uint64_t seed = 0;
    bool poison = false;
    int max_delay_us = 0;
  };

 private:
  const ProgramSet& set_;
  const ArenaLayout& layout_;
  Device& device_;
  void* base_[kTierCount] = {nullptr, nullptr};
  std::vector<Ticket> last_ticket_;               // by instruction of the running program
  Ticket program_end_[kLaneCount] = {0, 0, 0, 0};  // what entry_waits refer to
};

}  // namespace spillway
