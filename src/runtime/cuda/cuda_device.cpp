#include "runtime/cuda/cuda_device.h"

#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "config/config.h"

namespace spillway::cuda {
namespace {

constexpr const char* kLaneNames[] = {"compute", "h2d", "d2h", "comm"};
constexpr int kWordDepth = 1 << 14;  // tickets in flight a lane whose instructions are known

}  // namespace

CudaDevice::CudaDevice(KernelLookup kernels, Communicator& communicator, int index,
                       CudaDeviceOptions options)
    : kernels_(kernels),
      communicator_(communicator),
      index_(index),
      options_(std::move(options)),
      place_{communicator.rank(), communicator.size()} {
  require(cudaSetDevice(index), "cudaSetDevice");
  // Waiting sleeps: ranks and their watchdogs share the host's cores.
  require(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync), "cudaSetDeviceFlags");
  cudaDeviceProp properties{};
  require(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  int runtime = 0, driver = 0;
  require(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  require(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  sm_count_ = properties.multiProcessorCount;
  description_ =
      fmt::format("cuda ({}, sm_{}{})", properties.name, properties.major, properties.minor);
  // Not the driver's version: it compiles nothing here.
  fingerprint_ = {{"device", fmt::format("{} sm_{}{} with {} multiprocessors", properties.name,
                                         properties.major, properties.minor, sm_count_)},
                  {"cuda", std::to_string(runtime)}};

  int least = 0, greatest = 0;
  require(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  // What others wait for goes first: communication, then copies, then kernels.
  const int between = std::clamp((least + greatest) / 2, greatest, least);
  const int priority[kLanes] = {least, between, between, greatest};
  for (int l = 0; l < kLanes; ++l) {
    require(cudaStreamCreateWithPriority(&lanes_[l].stream, cudaStreamNonBlocking, priority[l]),
            "cudaStreamCreateWithPriority");
    lanes_[l].events = std::make_unique<EventRing>(options_.events, place_);
  }
  require(cudaStreamCreateWithPriority(&side_, cudaStreamNonBlocking, least),
          "cudaStreamCreateWithPriority");
  words_ = std::make_unique<ProgressWords>(kLanes, kWordDepth, place_);
  clock_ = std::make_unique<LaneClock>(options_.timed_entries, place_);
}

CudaDevice::~CudaDevice() {
  if (std::uncaught_exceptions() > 0 || !error_.empty()) {
    // Freeing waits for the lanes, which may wait for a peer that is gone. The driver frees all of
    // it at the end of the process, which is near.
    for (LaneState& s : lanes_)
      if (s.events) s.events->leak();
    if (words_) words_->leak();
    if (clock_) clock_->leak();
    if (nccl_) nccl_->leak();
    pinned_.leak();
    return;
  }
  for (LaneState& s : lanes_)
    if (s.stream) cudaStreamSynchronize(s.stream);
  nccl_.reset();
  gemm_.reset();
  clock_.reset();
  for (LaneState& s : lanes_) {
    s.events.reset();
    if (s.stream) cudaStreamDestroy(s.stream);
  }
  if (side_) cudaStreamDestroy(side_);
  if (arena_) cudaFree(arena_);
}

void CudaDevice::require(cudaError_t error, const char* call) const {
  if (error != cudaSuccess) throw_cuda(error, call, place_, what_ran());
}

// CUDA reports errors of kernels and copies at later calls.
std::string CudaDevice::what_ran() const {
  if (!words_) return "";
  std::string text;
  for (int l = 0; l < kLanes; ++l)
    if (const Instr* instr = words_->running(l))
      text += fmt::format("{} {} on {}", text.empty() ? "; the device was in" : ",", instr->name,
                          kLaneNames[l]);
  return text;
}

void CudaDevice::keep(const Error& e) {
  const std::string where = place_.text();
  const std::string what = e.what();
  error_ = what.starts_with(where) ? what : where + ": " + what;
  error_code_ = e.code();
  place_.instr = nullptr;
  throw Error(error_code_, error_);
}

// ---- memory -------------------------------------------------------------------------------------

void CudaDevice::refuse_arena(int64_t bytes, size_t free, size_t total,
                              const std::string& why) const {
  const auto foreign = static_cast<int64_t>(total - free);
  const std::string where = place_.ranks > 1 ? fmt::format("rank {}: ", place_.rank) : "";
  fail(ExitCode::does_not_fit,
       "{}device tier: the plan needs {}, and {} of the device's {} are free{}: {} are taken by "
       "driver, libraries, kernels and other processes (the profile reserves {}). It is {} short; "
       "set memory.device to at most \"{}MiB\"",
       where, format_bytes(bytes), format_bytes(static_cast<int64_t>(free)),
       format_bytes(static_cast<int64_t>(total)), why, format_bytes(foreign),
       format_bytes(options_.reserve_bytes),
       format_bytes(std::max<int64_t>(0, bytes - static_cast<int64_t>(free))), free >> 20);
}

void* CudaDevice::reserve(Tier tier, int64_t bytes) {
  if (tier == Tier::host) {
    pinned_.reserve(bytes, index_, options_.pinned, place_, options_.say);
    return pinned_.begin();
  }
  if (arena_) internal_error("the device arena is reserved a second time");
  if (bytes <= 0) internal_error("a device arena of {} bytes", bytes);
  size_t free = 0, total = 0;
  require(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  const auto size = static_cast<size_t>(round_up(bytes, 256));
  if (size > free) refuse_arena(bytes, free, total, "");
  const cudaError_t error = cudaMalloc(reinterpret_cast<void**>(&arena_), size);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it does not stay
    refuse_arena(bytes, free, total, " (cudaMalloc: out of memory)");
  }
  require(error, "cudaMalloc of the device arena");
  arena_bytes_ = bytes;
  return arena_;
}

int64_t CudaDevice::foreign_bytes() const {
  size_t free = 0, total = 0;
  require(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<int64_t>(total - free) - round_up(arena_bytes_, 256);
}

bool CudaDevice::device_owns(const void* data, int64_t bytes) const {
  const char* p = static_cast<const char*>(data);
  return arena_ && bytes >= 0 && bytes <= arena_bytes_ && p >= arena_ &&
         p <= arena_ + (arena_bytes_ - bytes);
}

void CudaDevice::check_copy(Lane l, const void* to, const void* from, int64_t bytes) const {
  const bool to_device = device_owns(to, bytes), from_device = device_owns(from, bytes);
  const bool known =
      (to_device || pinned_.contains(to, bytes)) && (from_device || pinned_.contains(from, bytes));
  const bool fits = l == Lane::h2d   ? to_device && !from_device
                    : l == Lane::d2h ? !to_device && from_device
                                     : true;
  if (!known || !fits)
    internal_error("copy of {} bytes from {} to {} does not stay in the arenas of the {} lane",
                   bytes, from, to, kLaneNames[static_cast<int>(l)]);
}

// ---- issuing ------------------------------------------------------------------------------------

void CudaDevice::wait(Lane l, Lane on, Ticket ticket) {
  if (l == on) return;  // in order anyway
  const std::lock_guard lock(mutex_);
  if (ticket > lane(on).issued)
    internal_error("{} lane told to wait for ticket {} of the {} lane, which has issued {}",
                   kLaneNames[static_cast<int>(l)], ticket, kLaneNames[static_cast<int>(on)],
                   lane(on).issued);
  Ticket& pending = lane(l).pending_wait[static_cast<int>(on)];
  pending = std::max(pending, ticket);
}

void CudaDevice::signal(Lane l) {
  const std::lock_guard lock(mutex_);
  LaneState& s = lane(l);
  guarded(nullptr, [&] {
    flush(l);
    if (s.events->newest() < s.issued) s.events->record(s.stream, s.issued, place_);
  });
}

template <class Body>
Ticket CudaDevice::issue(Lane l, const Instr* instr, Body&& body) {
  LaneState& s = lane(l);
  guarded(instr, [&] {
    const bool named = instr != nullptr;
    if (named) nvtxRangePushA(instr->name.c_str());
    flush(l);
    const Ticket ticket = s.issued + 1;
    constexpr Ticket kDepth = kWordDepth;
    // The issuer stays within what the words can tell; points are never further apart than this.
    if (ticket > kDepth && words_->completed(static_cast<int>(l)) + kDepth < ticket)
      require(cudaEventSynchronize(s.events->at_or_behind(ticket - kDepth / 2).event),
              "cudaEventSynchronize");
    if (ticket - s.events->newest() > kDepth / 4) s.events->record(s.stream, s.issued, place_);
    words_->issued(static_cast<int>(l), ticket, instr);

    bool waits = false;
    for (int on = 0; on < kLanes; ++on) waits |= s.pending_wait[on] > s.waited[on];
    const bool timed = named && clock_->wants(l, waits);
    if (timed) clock_->before(l, instr, s.stream, place_);
    for (int on = 0; on < kLanes; ++on) {
      const Ticket until = std::exchange(s.pending_wait[on], 0);
      if (until <= s.waited[on]) continue;
      LaneState& other = lanes_[on];
      flush(static_cast<Lane>(on));
      if (other.events->newest() < until) other.events->record(other.stream, other.issued, place_);
      const EventRing::Point point = other.events->at_or_behind(until);
      require(cudaStreamWaitEvent(s.stream, point.event, 0), "cudaStreamWaitEvent");
      s.waited[on] = point.ticket;
    }
    if (timed) clock_->begin(s.stream, place_);
    s.issued = ticket;
    const bool deferred = body(s);
    if (timed) clock_->end(s.stream, place_);
    if (!deferred) words_->advance(static_cast<int>(l), ticket, s.stream, place_);
    if (named) nvtxRangePop();
  });
  return s.issued;
}

Ticket CudaDevice::launch(Lane l, OpKind op, const KernelArgs& args, const Instr* instr) {
  const std::lock_guard lock(mutex_);
  return issue(l, instr, [&](LaneState& s) {
    kernels_(op)(args, LaunchContext{s.stream, gemm_.get(), sm_count_});
    return false;
  });
}

// In pieces where a range of pinned memory crosses the border of two registrations. Returns
// `bytes`.
int64_t CudaDevice::copy_now(cudaStream_t stream, char* to, const char* from, int64_t bytes) const {
  for (int64_t done = 0; done < bytes;) {
    int64_t n = bytes - done;
    if (pinned_.contains(to, 1)) n = std::min(n, pinned_.to_border(to));
    if (pinned_.contains(from, 1)) n = std::min(n, pinned_.to_border(from));
    const bool to_device = device_owns(to, n), from_device = device_owns(from, n);
    const cudaMemcpyKind kind =
        to_device ? (from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
                  : (from_device ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
    require(cudaMemcpyAsync(to, from, static_cast<size_t>(n), kind, stream), "cudaMemcpyAsync");
    to += n, from += n, done += n;
  }
  return bytes;
}

void CudaDevice::flush(Lane l) {
  LaneState& s = lane(l);
  if (s.pending.bytes == 0) return;
  const PendingCopy copy = std::exchange(s.pending, {});
  const std::string* other = std::exchange(place_.instr, &copy.first->name);
  nvtxRangePushA(copy.first->name.c_str());
  s.copied.fetch_add(copy_now(s.stream, copy.to, copy.from, copy.bytes));
  words_->advance(static_cast<int>(l), s.issued, s.stream, place_);
  nvtxRangePop();
  place_.instr = other;
}

Ticket CudaDevice::copy(Lane l, void* to, const void* from, int64_t bytes, const Instr* instr) {
  const std::lock_guard lock(mutex_);
  LaneState& s = lane(l);
  char* target = static_cast<char*>(to);
  const char* source = static_cast<const char*>(from);
  if (bytes > 0) guarded(instr, [&] { check_copy(l, to, from, bytes); });
  bool waits = false;
  for (int on = 0; on < kLanes; ++on) waits |= s.pending_wait[on] > s.waited[on];
  const bool small = instr && bytes <= options_.merge_below && !clock_->wants(l, waits);
  PendingCopy& p = s.pending;
  if (small && !waits && p.bytes > 0 && p.bytes <= options_.merge_below &&
      target == p.to + p.bytes && source == p.from + p.bytes && error_.empty()) {
    p.bytes += bytes;
    words_->issued(static_cast<int>(l), ++s.issued, instr);
    return s.issued;
  }
  return issue(l, instr, [&](LaneState& state) {
    if (small && bytes > 0) {
      state.pending = {target, source, bytes, instr};
      return true;
    }
    state.copied.fetch_add(copy_now(state.stream, target, source, bytes));
    return false;
  });
}

Ticket CudaDevice::exchange(Lane l, const ExchangeArgs& args, const Instr* instr) {
  const std::lock_guard lock(mutex_);
  return issue(l, instr, [&](LaneState& s) {
    for (const ExchangeArgs::Part& part : args.parts)
      if (!device_owns(part.data, part.extent()))
        internal_error("{} of {} bytes at {} outside the device arena",
                       part.send ? "send" : "receive", part.extent(), part.data);
    if (args.parts.empty()) return false;
    if (!nccl_) internal_error("an exchange with peers in a run of one rank");
    nccl_->exchange(args, s.stream, place_);
    return false;
  });
}

Ticket CudaDevice::fill(Lane l, void* to, uint8_t value, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  return issue(l, nullptr, [&](LaneState& s) {
    if (!device_owns(to, bytes) && !pinned_.contains(to, bytes))
      internal_error("fill of {} bytes at {} outside every arena", bytes, to);
    char* at = static_cast<char*>(to);
    while (bytes > 0) {
      const int64_t n = pinned_.contains(at, 1) ? std::min(bytes, pinned_.to_border(at)) : bytes;
      require(cudaMemsetAsync(at, value, static_cast<size_t>(n), s.stream), "cudaMemsetAsync");
      at += n, bytes -= n;
    }
    return false;
  });
}

// ---- waiting ------------------------------------------------------------------------------------

void CudaDevice::synchronise(Lane l, Ticket ticket) {
  LaneState& s = lane(l);
  cudaEvent_t event = nullptr;
  {
    const std::lock_guard lock(mutex_);
    guarded(nullptr, [&] {
      flush(l);
      const Ticket until = std::min(ticket, s.issued);
      if (until == 0) return;
      if (s.events->newest() < until) s.events->record(s.stream, s.issued, place_);
      event = s.events->at_or_behind(until).event;
    });
  }
  if (!event) return;
  // Should the event be recorded again meanwhile, this waits for longer than it must.
  const cudaError_t error = cudaEventSynchronize(event);
  const std::string asynchronous = poll();
  const std::lock_guard lock(mutex_);
  guarded(nullptr, [&] {
    require(error, "cudaEventSynchronize");
    // An aborted exchange ends without an error of CUDA's.
    if (!asynchronous.empty()) fail(ExitCode::no_progress, "{}", asynchronous);
  });
}

void CudaDevice::synchronise_all() {
  {
    const std::lock_guard lock(mutex_);
    guarded(nullptr, [&] {
      for (int l = 0; l < kLanes; ++l) flush(static_cast<Lane>(l));
    });
  }
  cudaError_t error = cudaSuccess;
  for (LaneState& s : lanes_)
    if (error == cudaSuccess) error = cudaStreamSynchronize(s.stream);
  const std::string asynchronous = poll();
  const std::lock_guard lock(mutex_);
  guarded(nullptr, [&] {
    require(error, "cudaStreamSynchronize");
    if (!asynchronous.empty()) fail(ExitCode::no_progress, "{}", asynchronous);
    clock_->deliver(place_);
  });
}

// Between pageable memory or a pinned range and the device, on a stream of its own.
void CudaDevice::transfer(const char* what, void* to, const void* from, int64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    guarded(nullptr, [&] {
      if (!device_owns(what[0] == 'u' ? to : from, bytes))
        internal_error("{} of {} bytes outside every arena", what, bytes);
      // The caller's thread may be another than the one that made the device.
      require(cudaSetDevice(index_), "cudaSetDevice");
    });
  }
  // Copies of pageable memory block.
  cudaError_t error = cudaSuccess;
  std::string said;
  try {
    copy_now(side_, static_cast<char*>(to), static_cast<const char*>(from), bytes);
    error = cudaStreamSynchronize(side_);
  } catch (const Error& e) {
    said = e.what();
  }
  const std::lock_guard lock(mutex_);
  guarded(nullptr, [&] {
    if (!said.empty()) fail(ExitCode::internal, "{}", said);
    require(error, "cudaStreamSynchronize");
  });
}

void CudaDevice::upload(void* to, const void* from, int64_t bytes) {
  if (pinned_.contains(to, bytes))
    std::memcpy(to, from, static_cast<size_t>(bytes));
  else
    transfer("upload", to, from, bytes);
}

void CudaDevice::download(void* to, const void* from, int64_t bytes) {
  if (pinned_.contains(from, bytes))
    std::memcpy(to, from, static_cast<size_t>(bytes));
  else
    transfer("download", to, from, bytes);
}

std::string CudaDevice::poll() const { return nccl_ ? nccl_->poll() : std::string(); }

Ticket CudaDevice::completed(Lane l) const { return words_->completed(static_cast<int>(l)); }
const Instr* CudaDevice::running(Lane l) const { return words_->running(static_cast<int>(l)); }
int64_t CudaDevice::bytes_copied(Lane l) const {
  return lane(l).copied.load(std::memory_order_relaxed);
}
void CudaDevice::record_times(TimeSink sink, void* context, Timed what) {
  clock_->set(sink, context, what);
}
std::string CudaDevice::gemm_algorithms() const { return gemm_ ? gemm_->algorithms() : ""; }

}  // namespace spillway::cuda
