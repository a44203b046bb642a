// Exchanges between devices over NCCL. Host-side helpers stay with the Communicator that
// bootstraps it.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <mutex>
#include <string>

#include "runtime/cuda/cuda_error.h"
#include "runtime/device.h"

namespace spillway::cuda {

// One a process, on the device that is current. One thread issues, in the program's order.
class NcclCommunicator {
 public:
  // Collective over `host`'s ranks.
  NcclCommunicator(Communicator& host, const Place& place);
  ~NcclCommunicator();  // waits for peers, unless `leak` or `abort` was called
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // Enqueues one grouped batch of sends and receives. The k-th send to a peer meets its k-th
  // receive from here; parts of no bytes are left out on both sides.
  void exchange(const ExchangeArgs& args, cudaStream_t stream, const Place& place);
  // One exchange with every peer, so that all connections stand. Collective; blocks.
  void warm_up(const std::vector<int>& peers, int64_t bytes, cudaStream_t stream,
               const Place& place);

  // "" or NCCL's asynchronous error, which also aborts, so that what blocks on a stream returns.
  // Any thread.
  std::string poll();
  void abort() noexcept;  // any thread
  void leak() { leaked_ = true; }

 private:
  Communicator& host_;
  ncclComm_t comm_ = nullptr;
  std::mutex mutex_;  // comm_ against abort
  std::string error_;
  std::atomic<bool> aborted_{false};
  bool leaked_ = false;
};

}  // namespace spillway::cuda
