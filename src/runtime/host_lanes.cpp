#include "runtime/host_lanes.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/progress_word.h"

namespace spillway {
namespace {

// One write of a file and one piece of a copy: large enough for a disk's bandwidth, small enough to
// be interrupted.
constexpr int64_t kPiece = int64_t{4} << 20;
// Between two looks at a device's lane: short at first, a part of the time waited for later.
constexpr std::chrono::microseconds kFirstPoll{10}, kLastPoll{200};

}  // namespace

struct HostLanes::Command {
  enum class Kind : uint8_t { copy, op, save, call, stop } kind = Kind::stop;
  OpKind op = OpKind::add;
  Ticket wait_for[kLaneCount] = {};
  char* to = nullptr;  // of a save: its workspace, or null
  const char* from = nullptr;
  int64_t bytes = 0, workspace_bytes = 0;
  std::function<void()> function;
  KernelArgs args;
};

struct HostLanes::LaneState {
  std::vector<Command> ring;
  Ticket next = 1;  // the issuer's: ticket of the command it fills next
  ProgressWord issued, completed;
  std::thread thread;
};

HostLanes::HostLanes(Device& device, int depth, KernelLookup kernels,
                     std::function<void()> cpu_thread_start)
    : device_(device), kernels_(kernels), cpu_thread_start_(std::move(cpu_thread_start)) {
  for (auto& state : lanes_) {
    state = std::make_unique<LaneState>();
    state->ring.resize(static_cast<size_t>(std::max(depth, 2)));
  }
  for (const Lane l : {Lane::cpu, Lane::io})
    lane(l).thread = std::thread([this, l] { run_lane(l); });
}

HostLanes::~HostLanes() {
  stopping_.store(true);
  for (const Lane l : {Lane::cpu, Lane::io}) {
    next_command(l, {}).kind = Command::Kind::stop;
    submit(l);
  }
  for (auto& state : lanes_) state->thread.join();
}

HostLanes::Command& HostLanes::next_command(Lane l, const Ticket (&wait_for)[kLaneCount]) {
  LaneState& state = lane(l);
  const Ticket depth = state.ring.size();
  if (state.next > depth) state.completed.wait_until(state.next - depth);
  Command& command = state.ring[state.next % depth];
  std::copy(std::begin(wait_for), std::end(wait_for), command.wait_for);
  return command;
}

Ticket HostLanes::submit(Lane l) {
  LaneState& state = lane(l);
  const Ticket ticket = state.next++;
  state.issued.advance(ticket);
  return ticket;
}

Ticket HostLanes::copy(void* to, const void* from, int64_t bytes,
                       const Ticket (&wait_for)[kLaneCount]) {
  Command& command = next_command(Lane::cpu, wait_for);
  command.kind = Command::Kind::copy;
  command.to = static_cast<char*>(to);
  command.from = static_cast<const char*>(from);
  command.bytes = bytes;
  return submit(Lane::cpu);
}

Ticket HostLanes::launch(OpKind op, const KernelArgs& args, const Ticket (&wait_for)[kLaneCount]) {
  Command& command = next_command(Lane::cpu, wait_for);
  command.kind = Command::Kind::op;
  command.op = op;
  command.args = args;
  return submit(Lane::cpu);
}

Ticket HostLanes::save(const void* from, int64_t bytes, void* workspace, int64_t workspace_bytes,
                       const Ticket (&wait_for)[kLaneCount]) {
  Command& command = next_command(Lane::io, wait_for);
  command.kind = Command::Kind::save;
  command.to = static_cast<char*>(workspace);
  command.from = static_cast<const char*>(from);
  command.bytes = bytes;
  command.workspace_bytes = workspace_bytes;
  return submit(Lane::io);
}

Ticket HostLanes::call(Lane l, std::function<void()> function) {
  Command& command = next_command(l, {});
  command.kind = Command::Kind::call;
  command.function = std::move(function);
  return submit(l);
}

void HostLanes::synchronise(Lane l, Ticket ticket) const {
  lane(l).completed.wait_until(ticket);
  const std::lock_guard lock(error_mutex_);
  if (error_) std::rethrow_exception(error_);
}

Ticket HostLanes::completed(Lane l) const { return lane(l).completed.value(); }

void HostLanes::run_lane(Lane l) {
  LaneState& state = lane(l);
  const auto keep_error = [&] {
    const std::lock_guard lock(error_mutex_);
    if (!error_) error_ = std::current_exception();
  };
  if (l == Lane::cpu && cpu_thread_start_) {
    try {
      cpu_thread_start_();
    } catch (...) {
      keep_error();
    }
  }
  for (Ticket ticket = 1;; ++ticket) {
    state.issued.wait_until(ticket);
    Command& command = state.ring[ticket % state.ring.size()];
    const bool stop = command.kind == Command::Kind::stop;
    if (!stop && !stopping_.load(std::memory_order_acquire)) {
      try {
        wait_for_others(l, command);
        execute(command);
      } catch (...) {
        keep_error();
      }
    }
    command.function = nullptr;
    state.completed.advance(ticket);
    if (stop) return;
  }
}

void HostLanes::wait_for_others(Lane l, const Command& command) const {
  for (int on = 0; on < kLaneCount; ++on) {
    const Lane other = static_cast<Lane>(on);
    if (command.wait_for[on] == 0 || other == l) continue;
    if (on >= kDeviceLaneCount) {
      lane(other).completed.wait_until(command.wait_for[on]);
      continue;
    }
    auto poll = kFirstPoll;
    while (device_.completed(other) < command.wait_for[on] && !stopping_.load()) {
      std::this_thread::sleep_for(poll);
      poll = std::min(kLastPoll, poll + poll / 5);
    }
    // Polling leaves a way out; this makes the device's writes this thread's to read, and throws
    // what the lane threw.
    if (!stopping_.load()) device_.synchronise(other, command.wait_for[on]);
  }
}

void HostLanes::execute(const Command& command) {
  if (command.kind == Command::Kind::call) return command.function();
  if (command.kind == Command::Kind::op) {
    const Kernel kernel = kernels_ ? kernels_(command.op) : nullptr;
    if (!kernel) internal_error("the host has no kernel for op {}", static_cast<int>(command.op));
    return kernel(command.args);
  }
  const bool save = command.kind == Command::Kind::save;
  if (save && !sink_) return;
  const bool staged = save && command.to != nullptr;
  const int64_t piece = staged ? std::min(kPiece, command.workspace_bytes) : kPiece;
  if (piece <= 0) internal_error("a save through a workspace of {} bytes", command.workspace_bytes);
  for (int64_t done = 0; done < command.bytes && !stopping_.load(); done += piece) {
    const int64_t n = std::min(piece, command.bytes - done);
    const char* from = command.from + done;
    if (!save) {
      std::memcpy(command.to + done, from, static_cast<size_t>(n));
      continue;
    }
    if (staged) {
      device_.download(command.to, from, n);
      from = command.to;
    }
    sink_(from, n);
  }
}

}  // namespace spillway
