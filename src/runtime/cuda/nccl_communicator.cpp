#include "runtime/cuda/nccl_communicator.h"

#include <cstring>

namespace spillway::cuda {

NcclCommunicator::NcclCommunicator(Communicator& host, const Place& place) : host_(host) {
  ncclUniqueId id;
  std::memset(&id, 0, sizeof id);
  ncclResult_t result = ncclSuccess;
  if (host.rank() == 0) result = ncclGetUniqueId(&id);
  // All ranks learn of rank 0's failure, instead of waiting for it.
  int64_t failed = result;
  host.broadcast(&failed, sizeof failed, 0);
  if (failed != ncclSuccess)
    throw_nccl(static_cast<ncclResult_t>(failed), "ncclGetUniqueId on rank 0", nullptr, place);
  host.broadcast(&id, sizeof id, 0);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  result = ncclCommInitRankConfig(&comm_, host.size(), id, host.rank(), &config);
  if (result != ncclSuccess) throw_nccl(result, "ncclCommInitRankConfig", nullptr, place);
}

NcclCommunicator::~NcclCommunicator() {
  if (!comm_ || leaked_ || aborted_.load()) return;
  ncclCommDestroy(comm_);
}

void NcclCommunicator::exchange(const ExchangeArgs& args, cudaStream_t stream, const Place& place) {
  const auto check_nccl = [&](ncclResult_t result, const char* call) {
    if (result != ncclSuccess) throw_nccl(result, call, comm_, place);
  };
  if (aborted_.load()) throw_nccl(ncclRemoteError, "an exchange", comm_, place);
  check_nccl(ncclGroupStart(), "ncclGroupStart");
  for (const ExchangeArgs::Part& part : args.parts) {
    if (part.bytes == 0) continue;
    const auto bytes = static_cast<size_t>(part.bytes);
    ncclResult_t result = ncclSuccess;
    part.each([&](int peer, char* data) {
      if (result != ncclSuccess) return;
      result = part.send ? ncclSend(data, bytes, ncclUint8, peer, comm_, stream)
                         : ncclRecv(data, bytes, ncclUint8, peer, comm_, stream);
    });
    if (result != ncclSuccess) {
      ncclGroupEnd();  // a group that stays open would take in whatever follows
      check_nccl(result, part.send ? "ncclSend" : "ncclRecv");
    }
  }
  check_nccl(ncclGroupEnd(), "ncclGroupEnd");
}

void NcclCommunicator::warm_up(const std::vector<int>& peers, int64_t bytes, cudaStream_t stream,
                               const Place& place) {
  if (peers.empty()) return;
  const size_t all = 2 * peers.size() * static_cast<size_t>(bytes);
  char* scratch = nullptr;
  check(cudaMalloc(reinterpret_cast<void**>(&scratch), all), "cudaMalloc of the exchange's warm-up",
        place);
  check(cudaMemsetAsync(scratch, 0, all, stream), "cudaMemsetAsync", place);
  std::vector<ExchangeArgs::Part> parts;
  char* at = scratch;
  for (const int r : peers) {
    parts.push_back({r, true, at, bytes});
    parts.push_back({r, false, at + bytes, bytes});
    at += 2 * bytes;
  }
  exchange({parts, 0}, stream, place);
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize", place);
  check(cudaFree(scratch), "cudaFree", place);
}

std::string NcclCommunicator::poll() {
  const std::lock_guard lock(mutex_);
  if (!error_.empty() || aborted_.load()) return error_;
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
  const ncclResult_t result = asked != ncclSuccess ? asked : state;
  if (result == ncclSuccess || result == ncclInProgress) return "";
  const char* detail = ncclGetLastError(comm_);
  error_ = fmt::format("NCCL reports {}{}{}", ncclGetErrorString(result),
                       detail && *detail ? ": " : "", detail ? detail : "");
  aborted_.store(true);
  ncclCommAbort(comm_);
  return error_;
}

void NcclCommunicator::abort() noexcept {
  const std::lock_guard lock(mutex_);
  if (aborted_.exchange(true)) return;
  if (comm_) ncclCommAbort(comm_);
}

}  // namespace spillway::cuda
