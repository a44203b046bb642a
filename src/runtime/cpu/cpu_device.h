// The CPU backend: "device" memory is an arena with a hard capacity, each lane a thread with a
// bounded queue, and copies are real and paced, so that every plan executes as it would on a
// device.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/arena.h"
#include "runtime/device.h"
#include "runtime/progress_word.h"

namespace spillway {

struct CpuDeviceOptions {
  double link = 0;             // bytes per second of each copy lane; 0: unpaced
  bool check_pointers = true;  // every pointer against its arena and its instruction's operands
  std::function<void()>
      compute_thread_start;  // called on the compute lane's thread before all else
  int queue_depth = 512;     // commands a lane holds before the issuer blocks
  // For tests: seeded random delays of up to `chaos_us` before each command of the lanes in
  // `chaos_lanes` (bit l: lane l).
  uint64_t chaos_seed = 0;
  int chaos_us = 0;
  uint8_t chaos_lanes = 1 << static_cast<int>(Lane::h2d) | 1 << static_cast<int>(Lane::d2h);
};

// Allocates nothing after construction but the arenas. One thread issues (launch, copy, exchange,
// fill, wait); progress words may be read from any thread.
class CpuDevice : public Device {
 public:
  using KernelLookup = Kernel (*)(OpKind);

  // `communicator` may be null where no program exchanges; it outlives the device.
  CpuDevice(KernelLookup kernels, Communicator* communicator, CpuDeviceOptions options = {});
  ~CpuDevice() override;  // skips what has not begun

  void* reserve(Tier tier, int64_t bytes) override;
  Ticket launch(Lane lane, OpKind op, const KernelArgs& args, const Instr* instr) override;
  Ticket copy(Lane lane, void* to, const void* from, int64_t bytes, const Instr* instr) override;
  Ticket exchange(Lane lane, const ExchangeArgs& args, const Instr* instr) override;
  Ticket fill(Lane lane, void* to, uint8_t value, int64_t bytes) override;
  void wait(Lane lane, Lane on, Ticket ticket) override;
  void synchronise(Lane lane, Ticket ticket) override;
  void synchronise_all() override;
  void upload(void* to, const void* from, int64_t bytes) override;
  void download(void* to, const void* from, int64_t bytes) override;
  Ticket completed(Lane lane) const override;
  const Instr* running(Lane lane) const override;
  int64_t bytes_copied(Lane lane) const override;
  void record_times(TimeSink sink, void* context, Timed what = Timed::all) override;
  std::string description() const override;
  std::map<std::string, std::string> fingerprint() const override;

 private:
  struct Command;
  struct LaneState;

  LaneState& lane(Lane l) const { return *lanes_[static_cast<int>(l)]; }
  Command& next_command(Lane l, const Instr* instr);
  Ticket submit(Lane l);
  void run_lane(Lane l);
  void execute(Lane l, const Command& command, Ticket ticket);
  void paced_copy(Lane l, char* to, const char* from, int64_t bytes);
  void check_op(const Command& command) const;
  void check_copy(Lane l, const Command& command) const;
  void check_exchange(const Command& command) const;
  void check_in_arena(const char* what, const void* data, int64_t bytes) const;
  void keep_error(Lane l, const Command& command, std::exception_ptr error);
  void rethrow() const;

  KernelLookup kernels_;
  Communicator* communicator_;
  CpuDeviceOptions options_;
  int64_t start_ns_;
  Arena arenas_[kTierCount];
  std::unique_ptr<LaneState> lanes_[kDeviceLaneCount];
  TimeSink sink_ = nullptr;
  void* sink_context_ = nullptr;
  std::atomic<bool> failed_{false};
  mutable std::mutex error_mutex_;
  std::exception_ptr error_;
};

}  // namespace spillway
