// The lanes that no device has: copies within host memory and updates by the host's processors
// (Lane::cpu), files (Lane::io); a thread each, and those that kernels ask for. What is slow here
// never holds up a lane of the device unless the program says so.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>

#include "runtime/device.h"

namespace spillway {

// One issuing thread. Instructions allocate nothing; `call` may.
class HostLanes {
 public:
  // Takes the bytes of a save in order, in pieces; on the io lane's thread. Must not throw.
  using SaveSink = std::function<void(const void* data, int64_t bytes)>;

  using KernelLookup = Kernel (*)(OpKind);

  // `depth`: commands a lane holds before the issuer blocks. `device` outlives this. `kernels`: of
  // what is launched; `cpu_thread_start`, if there is one, is called on the cpu lane's thread
  // first.
  HostLanes(Device& device, int depth, KernelLookup kernels = nullptr,
            std::function<void()> cpu_thread_start = {});
  ~HostLanes();  // skips what has not begun, waits for the piece at hand

  // Each waits first for lane l, device's or own, to reach wait_for[l] (0: nothing to wait for),
  // and returns its ticket, as a Device's calls do.
  Ticket copy(void* to, const void* from, int64_t bytes, const Ticket (&wait_for)[kLaneCount]);
  // A kernel over the host's memory, on the cpu lane. `args` are copied.
  Ticket launch(OpKind op, const KernelArgs& args, const Ticket (&wait_for)[kLaneCount]);
  // Gives the sink `bytes` from `from`; through `workspace` if that is not null, for bytes of the
  // device.
  Ticket save(const void* from, int64_t bytes, void* workspace, int64_t workspace_bytes,
              const Ticket (&wait_for)[kLaneCount]);
  // Runs a function of the caller's after what the lane was given before.
  Ticket call(Lane lane, std::function<void()> function);

  // Nothing is saved while there is none. Set while the io lane is idle.
  void set_sink(SaveSink sink) { sink_ = std::move(sink); }

  // Blocks the caller; rethrows what a lane threw first.
  void synchronise(Lane lane, Ticket ticket) const;
  Ticket completed(Lane lane) const;  // never blocks; any thread

 private:
  struct Command;
  struct LaneState;

  LaneState& lane(Lane l) const { return *lanes_[static_cast<int>(l) - kDeviceLaneCount]; }
  Command& next_command(Lane l, const Ticket (&wait_for)[kLaneCount]);
  Ticket submit(Lane l);
  void run_lane(Lane l);
  void wait_for_others(Lane l, const Command& command) const;
  void execute(const Command& command);

  Device& device_;
  KernelLookup kernels_;
  std::function<void()> cpu_thread_start_;
  SaveSink sink_;
  std::unique_ptr<LaneState> lanes_[kLaneCount - kDeviceLaneCount];
  std::atomic<bool> stopping_{false};
  mutable std::mutex error_mutex_;
  std::exception_ptr error_;
};

}  // namespace spillway
