// The CUDA backend: lanes are streams, waits are events, copies are the copy engines'. The thread
// that issues gives work straight to the streams and never waits for them, except where the device
// interface says so.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/cuda/context.h"
#include "kernels/cuda/gemm.h"
#include "runtime/cuda/event_ring.h"
#include "runtime/cuda/lane_clock.h"
#include "runtime/cuda/nccl_communicator.h"
#include "runtime/cuda/pinned_arena.h"
#include "runtime/cuda/progress_words.h"
#include "runtime/device.h"

namespace spillway::cuda {

struct CudaDeviceOptions {
  int64_t reserve_bytes = 0;                    // the profile's, for messages
  int64_t gemm_workspace = 0;                   // the profile's
  std::string gemm_algorithms;                  // to start with; "" chooses all anew
  std::function<void(const std::string&)> say;  // lines for the user
  PinnedOptions pinned;
  // A copy that continues the one before on its lane, in both memories, is merged with it while
  // neither is larger than this and nobody waits in between.
  int64_t merge_below = 1 << 20;
  int events = 256;         // of each lane
  int timed_entries = 512;  // instructions whose times are kept until they are asked for
};

// Creates streams, events and words in the constructor, communicators in `connect`; allocates
// nothing after `reserve`. One thread issues; synchronise and download may be called from another
// at the same time, and what never blocks from any. After an error every call throws it again.
// While an exception is on its way the destructor releases nothing that would wait for a peer: the
// process is about to end.
class CudaDevice : public Device {
 public:
  using KernelLookup = CudaKernel (*)(OpKind);

  // On device `index` of those that this process sees. `communicator` outlives the device.
  CudaDevice(KernelLookup kernels, Communicator& communicator, int index,
             CudaDeviceOptions options);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  void connect(const ProgramSet& set) override;
  void warm_up(const ProgramSet& set, const ArenaLayout& layout) override;
  void* reserve(Tier tier, int64_t bytes) override;

  Ticket launch(Lane lane, OpKind op, const KernelArgs& args, const Instr* instr) override;
  Ticket copy(Lane lane, void* to, const void* from, int64_t bytes, const Instr* instr) override;
  Ticket exchange(Lane lane, const ExchangeArgs& args, const Instr* instr) override;
  Ticket fill(Lane lane, void* to, uint8_t value, int64_t bytes) override;
  void signal(Lane lane) override;
  void wait(Lane lane, Lane on, Ticket ticket) override;
  void synchronise(Lane lane, Ticket ticket) override;
  void synchronise_all() override;
  void upload(void* to, const void* from, int64_t bytes) override;
  void download(void* to, const void* from, int64_t bytes) override;
  Ticket completed(Lane lane) const override;
  const Instr* running(Lane lane) const override;
  int64_t bytes_copied(Lane lane) const override;
  void record_times(TimeSink sink, void* context, Timed what = Timed::all) override;

  int64_t foreign_bytes() const override;
  void enter_step(int64_t step) override { place_.step = step; }
  std::string poll() const override;
  std::string description() const override { return description_; }
  std::map<std::string, std::string> fingerprint() const override { return fingerprint_; }
  std::string gemm_algorithms() const override;

 private:
  static constexpr int kLanes = 4;  // compute, h2d, d2h, comm

  struct PendingCopy {  // issued by the program, not yet by us
    char* to = nullptr;
    const char* from = nullptr;
    int64_t bytes = 0;
    const Instr* first = nullptr;  // of what was merged
  };
  struct LaneState {
    cudaStream_t stream = nullptr;
    Ticket issued = 0;
    Ticket pending_wait[kLanes] = {};  // for what comes next
    Ticket waited[kLanes] = {};        // tickets of other lanes that are behind this one already
    PendingCopy pending;
    std::unique_ptr<EventRing> events;
    std::atomic<int64_t> copied{0};
  };

  LaneState& lane(Lane l) { return lanes_[static_cast<int>(l)]; }
  const LaneState& lane(Lane l) const { return lanes_[static_cast<int>(l)]; }
  bool device_owns(const void* data, int64_t bytes) const;
  // Runs `body`, which issues `instr`; keeps the first error and says where it came up.
  template <class Body>
  void guarded(const Instr* instr, Body&& body) {
    if (!error_.empty()) throw Error(error_code_, error_);
    place_.instr = instr ? &instr->name : nullptr;
    try {
      body();
    } catch (const Error& e) {
      keep(e);
    }
    place_.instr = nullptr;
  }
  [[noreturn]] void keep(const Error& error);
  void transfer(const char* what, void* to, const void* from, int64_t bytes);
  template <class Body>
  Ticket issue(Lane l, const Instr* instr, Body&& body);
  void flush(Lane l);
  int64_t copy_now(cudaStream_t stream, char* to, const char* from, int64_t bytes) const;
  void check_copy(Lane l, const void* to, const void* from, int64_t bytes) const;
  void require(cudaError_t error, const char* call) const;
  std::string what_ran() const;
  [[noreturn]] void refuse_arena(int64_t bytes, size_t free, size_t total,
                                 const std::string& why) const;

  KernelLookup kernels_;
  Communicator& communicator_;
  int index_ = 0;
  CudaDeviceOptions options_;
  Place place_;
  std::string description_;
  std::map<std::string, std::string> fingerprint_;
  int sm_count_ = 0;
  mutable std::mutex mutex_;  // of all that follows, but for atomics; never held while blocking
  LaneState lanes_[kLanes];
  cudaStream_t side_ = nullptr;  // of uploads and downloads, outside every lane's order
  std::unique_ptr<ProgressWords> words_;
  std::unique_ptr<LaneClock> clock_;
  std::unique_ptr<Gemm> gemm_;
  std::unique_ptr<NcclCommunicator> nccl_;
  char* arena_ = nullptr;
  int64_t arena_bytes_ = 0;
  PinnedArena pinned_;
  std::string error_;  // of the first failure
  ExitCode error_code_ = ExitCode::internal;
};

}  // namespace spillway::cuda
