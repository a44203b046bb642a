#include "runtime/cpu/cpu_device.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/philox.h"
#include "kernels/cpu/isa.h"

namespace spillway {

namespace {

constexpr const char* kLaneNames[kDeviceLaneCount] = {"compute", "h2d", "d2h", "comm"};
constexpr const char* kTierNames[kTierCount] = {"device", "host"};
constexpr int64_t kMinPiece = 256 << 10, kMaxPiece = 8 << 20;

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// Absolute, so that a late wake-up of one piece is not added to the next.
void sleep_until(int64_t ns) {
  const timespec t{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, nullptr) == EINTR) {
  }
}

double seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

}  // namespace

struct CpuDevice::Command {
  enum class Kind : uint8_t { op, copy, exchange, fill, stop } kind = Kind::op;
  OpKind op = OpKind::add;
  uint8_t value = 0;
  const Instr* instr = nullptr;
  Ticket wait_for[kDeviceLaneCount] = {0, 0, 0, 0};
  TimeSink sink = nullptr;
  void* sink_context = nullptr;
  char* to = nullptr;
  const char* from = nullptr;
  int64_t bytes = 0;
  ExchangeArgs exchange;
  KernelArgs args;
};

struct alignas(64) CpuDevice::LaneState {
  std::vector<Command> ring;
  Ticket next = 1;  // the issuer's: ticket of the command it fills next
  Ticket pending_wait[kDeviceLaneCount] = {0, 0, 0, 0};  // the issuer's: for that command
  alignas(64) ProgressWord issued;
  alignas(64) ProgressWord completed;
  std::atomic<const Instr*> running{nullptr};
  std::atomic<int64_t> copied{0};
  double link_free_ns = 0;  // the lane's: scheduled end of its last copy
  bool link_idle = true;    // the lane's: it has not been copying without a pause since then
  std::thread thread;
};

CpuDevice::CpuDevice(KernelLookup kernels, Communicator* communicator, CpuDeviceOptions options)
    : kernels_(kernels),
      communicator_(communicator),
      options_(std::move(options)),
      start_ns_(now_ns()) {
  if (options_.queue_depth < 1) internal_error("lane queues of {} commands", options_.queue_depth);
  for (auto& state : lanes_) {
    state = std::make_unique<LaneState>();
    state->ring.resize(options_.queue_depth);
  }
  for (int l = 0; l < kDeviceLaneCount; ++l)
    lanes_[l]->thread = std::thread([this, l] { run_lane(static_cast<Lane>(l)); });
}

CpuDevice::~CpuDevice() {
  failed_.store(true);  // what has not begun is skipped
  const bool exchanging = lane(Lane::comm).completed.value() + 1 < lane(Lane::comm).next;
  if (exchanging && communicator_) communicator_->abort();
  for (int l = 0; l < kDeviceLaneCount; ++l) {
    next_command(static_cast<Lane>(l), nullptr).kind = Command::Kind::stop;
    submit(static_cast<Lane>(l));
  }
  for (auto& state : lanes_) state->thread.join();
}

void* CpuDevice::reserve(Tier tier, int64_t bytes) {
  Arena& arena = arenas_[static_cast<int>(tier)];
  arena.reserve(kTierNames[static_cast<int>(tier)], bytes);
  return arena.begin();
}

CpuDevice::Command& CpuDevice::next_command(Lane l, const Instr* instr) {
  LaneState& state = lane(l);
  const Ticket depth = state.ring.size();
  if (state.next > depth) state.completed.wait_until(state.next - depth);
  Command& command = state.ring[state.next % depth];
  command.instr = instr;
  command.sink = instr ? sink_ : nullptr;
  command.sink_context = sink_context_;
  std::copy(std::begin(state.pending_wait), std::end(state.pending_wait), command.wait_for);
  std::fill(std::begin(state.pending_wait), std::end(state.pending_wait), 0);
  return command;
}

Ticket CpuDevice::submit(Lane l) {
  LaneState& state = lane(l);
  const Ticket ticket = state.next++;
  state.issued.advance(ticket);
  return ticket;
}

Ticket CpuDevice::launch(Lane l, OpKind op, const KernelArgs& args, const Instr* instr) {
  Command& command = next_command(l, instr);
  command.kind = Command::Kind::op;
  command.op = op;
  command.args = args;
  return submit(l);
}

Ticket CpuDevice::copy(Lane l, void* to, const void* from, int64_t bytes, const Instr* instr) {
  Command& command = next_command(l, instr);
  command.kind = Command::Kind::copy;
  command.to = static_cast<char*>(to);
  command.from = static_cast<const char*>(from);
  command.bytes = bytes;
  return submit(l);
}

Ticket CpuDevice::exchange(Lane l, const ExchangeArgs& args, const Instr* instr) {
  Command& command = next_command(l, instr);
  command.kind = Command::Kind::exchange;
  command.exchange = args;
  return submit(l);
}

Ticket CpuDevice::fill(Lane l, void* to, uint8_t value, int64_t bytes) {
  Command& command = next_command(l, nullptr);
  command.kind = Command::Kind::fill;
  command.to = static_cast<char*>(to);
  command.value = value;
  command.bytes = bytes;
  return submit(l);
}

void CpuDevice::wait(Lane l, Lane on, Ticket ticket) {
  if (l == on) return;  // in order anyway
  if (ticket >= lane(on).next)
    internal_error("{} lane told to wait for ticket {} of the {} lane, which has issued {}",
                   kLaneNames[static_cast<int>(l)], ticket, kLaneNames[static_cast<int>(on)],
                   lane(on).next - 1);
  Ticket& pending = lane(l).pending_wait[static_cast<int>(on)];
  pending = std::max(pending, ticket);
}

void CpuDevice::synchronise(Lane l, Ticket ticket) {
  lane(l).completed.wait_until(std::min(ticket, lane(l).issued.value()));
  rethrow();
}

void CpuDevice::synchronise_all() {
  for (auto& state : lanes_) state->completed.wait_until(state->issued.value());
  rethrow();
}

void CpuDevice::upload(void* to, const void* from, int64_t bytes) {
  check_in_arena("upload to", to, bytes);
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void CpuDevice::download(void* to, const void* from, int64_t bytes) {
  check_in_arena("download from", from, bytes);
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

Ticket CpuDevice::completed(Lane l) const { return lane(l).completed.value(); }
const Instr* CpuDevice::running(Lane l) const {
  return lane(l).running.load(std::memory_order_acquire);
}
int64_t CpuDevice::bytes_copied(Lane l) const {
  return lane(l).copied.load(std::memory_order_relaxed);
}
void CpuDevice::record_times(TimeSink sink, void* context, Timed) {
  sink_ = sink;
  sink_context_ = context;
}

std::string CpuDevice::description() const { return fmt::format("cpu ({})", cpu::isa_name()); }
std::map<std::string, std::string> CpuDevice::fingerprint() const {
  return {{"isa", cpu::isa_name()}};
}

void CpuDevice::run_lane(Lane l) {
  prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; the default of 50 µs is too coarse for pacing
  LaneState& state = lane(l);
  if (l == Lane::compute && options_.compute_thread_start) {
    try {
      options_.compute_thread_start();
    } catch (...) {
      keep_error(l, Command(), std::current_exception());
    }
  }
  for (Ticket ticket = 1;; ++ticket) {
    state.link_idle |= state.issued.wait_until(ticket);
    const Command& command = state.ring[ticket % state.ring.size()];
    if (command.kind == Command::Kind::stop) {
      state.completed.advance(ticket);
      return;
    }
    LaneTimes times;
    const int64_t arrived = now_ns();
    bool waited = false;
    for (int on = 0; on < kDeviceLaneCount; ++on)
      if (command.wait_for[on] > 0)
        waited |= lanes_[on]->completed.wait_until(command.wait_for[on]);
    if (!failed_.load(std::memory_order_acquire)) {
      state.running.store(command.instr, std::memory_order_release);
      const int64_t begin = now_ns();
      try {
        state.link_idle |= waited;
        execute(l, command, ticket);
      } catch (...) {
        keep_error(l, command, std::current_exception());
      }
      if (command.sink) {
        times.begin = seconds(begin - start_ns_);
        times.end = seconds(now_ns() - start_ns_);
        times.waited = waited ? seconds(begin - arrived) : 0;
        command.sink(command.sink_context, l, command.instr, times);
      }
      state.running.store(nullptr, std::memory_order_release);
    }
    state.completed.advance(ticket);
  }
}

void CpuDevice::execute(Lane l, const Command& command, Ticket ticket) {
  if (options_.chaos_us > 0 && (options_.chaos_lanes >> static_cast<int>(l) & 1)) {
    const auto random = philox(options_.chaos_seed, ticket, static_cast<uint64_t>(l));
    sleep_until(now_ns() + int64_t{random[0] % (options_.chaos_us + 1u)} * 1000);
    lane(l).link_idle = true;
  }
  if (command.kind != Command::Kind::copy) lane(l).link_idle = true;
  switch (command.kind) {
    case Command::Kind::op: {
      if (options_.check_pointers) check_op(command);
      const Kernel kernel = kernels_(command.op);
      if (!kernel) internal_error("there is no CPU kernel for op {}", static_cast<int>(command.op));
      kernel(command.args);
      break;
    }
    case Command::Kind::copy:
      if (options_.check_pointers) check_copy(l, command);
      paced_copy(l, command.to, command.from, command.bytes);
      break;
    case Command::Kind::exchange:
      if (options_.check_pointers) check_exchange(command);
      if (!communicator_) internal_error("an exchange without a communicator");
      communicator_->exchange(command.exchange);
      break;
    case Command::Kind::fill:
      check_in_arena("fill of", command.to, command.bytes);
      std::memset(command.to, command.value, static_cast<size_t>(command.bytes));
      break;
    case Command::Kind::stop:
      break;
  }
}

// Piece k of a copy ends no sooner than its bytes take on the link. A copy that follows another
// without a pause starts at that one's scheduled end, not when its sleep happened to return: so
// neither oversleeping nor the time of memcpy adds up.
void CpuDevice::paced_copy(Lane l, char* to, const char* from, int64_t bytes) {
  LaneState& state = lane(l);
  const bool paced = options_.link > 0 && (l == Lane::h2d || l == Lane::d2h);
  const double ns_per_byte = paced ? 1e9 / options_.link : 0;
  int64_t piece = kMaxPiece;
  if (paced) piece = std::clamp(static_cast<int64_t>(5e5 / ns_per_byte), kMinPiece, kMaxPiece);
  const double start = state.link_idle ? static_cast<double>(now_ns()) : state.link_free_ns;
  state.link_idle = false;
  for (int64_t done = 0; done < bytes;) {
    const int64_t n = std::min(piece, bytes - done);
    std::memcpy(to + done, from + done, static_cast<size_t>(n));
    done += n;
    state.copied.fetch_add(n, std::memory_order_relaxed);
    if (paced) {
      const double deadline = start + static_cast<double>(done) * ns_per_byte;
      const int64_t now = now_ns();
      const bool late = static_cast<double>(now) >= deadline;
      if (!late) sleep_until(static_cast<int64_t>(deadline));
      // Memory slower than the link: no credit is saved up for later copies.
      state.link_free_ns = late ? static_cast<double>(now) : deadline;
    }
  }
}

void CpuDevice::check_in_arena(const char* what, const void* data, int64_t bytes) const {
  for (const Arena& arena : arenas_)
    if (arena.contains(data, bytes)) return;
  internal_error("{} {} bytes at {} outside every arena", what, bytes, data);
}

void CpuDevice::check_op(const Command& command) const {
  const Arena& device = arenas_[static_cast<int>(Tier::device)];
  const KernelArgs& args = command.args;
  const Instr* instr = command.instr;
  auto check = [&](const char* side, const TensorArg* given, int32_t count,
                   const std::vector<ProgramOperand>* declared) {
    if (declared && static_cast<int32_t>(declared->size()) != count)
      internal_error("{} operands in {}, {} declared", count, side, declared->size());
    for (int32_t i = 0; i < count; ++i) {
      const int64_t bytes = given[i].dims.count() * size_of(given[i].dtype);
      if (!device.contains(given[i].data, bytes))
        internal_error("operand {}[{}] ({} bytes at {}) lies outside the device arena", side, i,
                       bytes, given[i].data);
      if (declared && (*declared)[i].bytes() != bytes)
        internal_error("operand {}[{}] has {} bytes, {} declared", side, i, bytes,
                       (*declared)[i].bytes());
    }
  };
  check("in", args.in, args.in_count, instr ? &instr->in : nullptr);
  check("out", args.out, args.out_count, instr ? &instr->out : nullptr);
  if (args.workspace_bytes > 0 && !device.contains(args.workspace, args.workspace_bytes))
    internal_error("workspace ({} bytes at {}) lies outside the device arena", args.workspace_bytes,
                   args.workspace);
  if (instr && args.workspace_bytes > 0 &&
      (instr->workspace.buffer < 0 || args.workspace_bytes > instr->workspace.bytes()))
    internal_error("workspace has {} bytes, {} declared", args.workspace_bytes,
                   instr->workspace.buffer < 0 ? 0 : instr->workspace.bytes());
}

void CpuDevice::check_copy(Lane l, const Command& command) const {
  auto in = [&](Tier tier, const void* data) {
    return arenas_[static_cast<int>(tier)].contains(data, command.bytes);
  };
  if (l != Lane::h2d && l != Lane::d2h) {
    check_in_arena("copy to", command.to, command.bytes);
    check_in_arena("copy from", command.from, command.bytes);
    return;
  }
  const Tier from = l == Lane::h2d ? Tier::host : Tier::device;
  const Tier to = l == Lane::h2d ? Tier::device : Tier::host;
  if (!in(from, command.from))
    internal_error("copy of {} bytes from {} outside the {} arena", command.bytes,
                   static_cast<const void*>(command.from), kTierNames[static_cast<int>(from)]);
  if (!in(to, command.to))
    internal_error("copy of {} bytes to {} outside the {} arena", command.bytes,
                   static_cast<const void*>(command.to), kTierNames[static_cast<int>(to)]);
}

void CpuDevice::check_exchange(const Command& command) const {
  for (const ExchangeArgs::Part& part : command.exchange.parts)
    check_in_arena(part.send ? "send of" : "receive of", part.data, part.extent());
}

void CpuDevice::keep_error(Lane l, const Command& command, std::exception_ptr error) {
  auto said = [&](ExitCode code, const char* what) {
    return std::make_exception_ptr(
        Error(code, fmt::format("{} lane, {}: {}", kLaneNames[static_cast<int>(l)],
                                command.instr ? command.instr->name : "no instruction", what)));
  };
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    error = said(e.code(), e.what());
  } catch (const std::exception& e) {
    error = said(ExitCode::internal, e.what());
  } catch (...) {
    error = said(ExitCode::internal, "an exception of unknown type");
  }
  const std::lock_guard lock(error_mutex_);
  if (error_) return;
  error_ = error;
  failed_.store(true, std::memory_order_release);
  // Peers may never send what this rank's communication lane is waiting for.
  if (communicator_ && l != Lane::comm) communicator_->abort();
}

void CpuDevice::rethrow() const {
  if (!failed_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(error_mutex_);
  if (error_) std::rethrow_exception(error_);
}

}  // namespace spillway
