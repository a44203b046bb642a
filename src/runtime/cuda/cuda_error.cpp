#include "runtime/cuda/cuda_error.h"

namespace spillway::cuda {

std::string Place::text() const {
  std::string text;
  if (ranks > 1) text = fmt::format("rank {}, ", rank);
  text += step > 0 ? fmt::format("step {}", step) : std::string("start-up");
  if (instr) text += ", instruction " + *instr;
  return text;
}

void throw_cuda(cudaError_t error, const char* call, const Place& place, const std::string& more) {
  fail(ExitCode::internal, "{}: {} failed: {} ({}){}", place.text(), call,
       cudaGetErrorString(error), cudaGetErrorName(error), more);
}

void throw_nccl(ncclResult_t result, const char* call, ncclComm_t communicator,
                const Place& place) {
  std::string detail = communicator ? ncclGetLastError(communicator) : ncclGetLastError(nullptr);
  while (!detail.empty() && (detail.back() == '\n' || detail.back() == ' ')) detail.pop_back();
  fail(ExitCode::no_progress, "{}: {} failed: {}{}{}", place.text(), call,
       ncclGetErrorString(result), detail.empty() ? "" : ": ", detail);
}

}  // namespace spillway::cuda
