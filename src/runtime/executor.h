// Walks a program's instructions and gives them to the device's lanes, exactly as planned.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "program/program.h"
#include "runtime/device.h"
#include "runtime/host_lanes.h"

namespace spillway {

// Owns its tables and the host's lanes; allocates in the constructor and nothing afterwards.
//
// An instruction of the device that must wait for a host lane is issued only once that lane is
// there: the issuing thread waits in its place. Waits for saves are what stall_seconds counts, not
// those for updates on the host, which are part of the step.
class Executor {
 public:
  struct Options {
    // For tests: once a buffer of iteration scope is dead in an iteration, its bytes are filled
    // with 0xFF (NaN), so that a plan that reads freed bytes cannot go unnoticed.
    bool poison = false;
    // Called before (true) and after (false) the issuing thread waits for a save.
    std::function<void(bool waiting)> on_host_wait;
    // Of updates on the host: the CPU backend's kernels, and what is called first on the thread
    // that runs them.
    HostLanes::KernelLookup host_kernels = nullptr;
    std::function<void()> host_thread_start;
  };

  // Reserves both arenas of `layout` on the device. `set` and `layout` outlive the executor. Throws
  // Error(internal) where an operand is not covered by its instruction's declared accesses, or an
  // access leaves its buffer or arena.
  Executor(const ProgramSet& set, const ArenaLayout& layout, Device& device);
  Executor(const ProgramSet& set, const ArenaLayout& layout, Device& device, Options options);

  // Issues one run of a program: asynchronous; programs follow each other in order. Returns when
  // everything is issued (lane queues are bounded, so this may block while they are full).
  // `micro_override` ≥ 0 replaces the micro-batch index (evaluate).
  void run(int program, int micro_override = -1);

  // Blocks until what was issued to the device's lanes so far, and updates on the host, have run;
  // rethrows a lane's error.
  void finish();

  HostLanes& host_lanes() { return host_; }
  // Time that the issuing thread waited for host lanes since the last call.
  double take_stall_seconds();

  // Where version `version` (modulo the buffer's versions) of a buffer stands, `offset` bytes in.
  void* address(BufferId buffer, int32_t version = 0, int64_t offset = 0) const;
  Device& device() { return device_; }

 private:
  struct Poison {  // to do after an instruction
    BufferId buffer;
    Affine version;
    std::vector<InstrId> users;  // of this iteration, on other lanes
  };
  struct Tables {                             // of one program
    std::vector<std::vector<Poison>> poison;  // by instruction, or empty
    std::vector<uint8_t> signals;             // by instruction: another lane waits for it
    std::vector<int32_t> first_parts;         // by instruction, into parts
    std::vector<std::vector<ExchangeArgs::Part>> parts;  // by exchange and iteration
  };

  void check(const Program& program, const Instr& instr, int32_t trip) const;
  void bind_exchanges(const Program& program, Tables& tables) const;
  void find_poison(const Program& program, Tables& tables) const;
  void find_signals(const Program& program, Tables& tables) const;
  Ticket issue(const Program& program, const Tables& tables, InstrId id, int32_t iteration,
               int32_t micro, const Ticket (&host_waits)[kLaneCount]);
  void wait_for_host(Lane lane, Ticket ticket);
  void wait_for_update(Ticket ticket);
  void* at(BufferId buffer, Affine version, int32_t iteration, int64_t offset) const {
    return address(buffer, version.base + version.step * iteration, offset);
  }

  const ProgramSet& set_;
  const ArenaLayout& layout_;
  Device& device_;
  char* base_[kTierCount] = {nullptr, nullptr};
  std::vector<Tables> tables_;           // by program
  std::vector<Ticket> last_ticket_;      // by instruction of the running program; 0: none
  Ticket issued_[kLaneCount] = {};       // last instruction's ticket of each lane
  Ticket program_end_[kLaneCount] = {};  // what entry_waits refer to
  Ticket last_update_ = 0;               // on the host, of the cpu lane
  std::function<void(bool)> on_host_wait_;
  double stall_seconds_ = 0;
  HostLanes host_;
};

}  // namespace spillway
