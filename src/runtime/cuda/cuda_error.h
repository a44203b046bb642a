// Errors of CUDA and NCCL calls as Errors that say which call, in which instruction and step, on
// which rank.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>
#include <string>

#include "base/error.h"

namespace spillway::cuda {

// Where a rank stands; kept by who issues, read by who reports.
struct Place {
  int rank = 0, ranks = 1;
  int64_t step = 0;                    // 0: start-up
  const std::string* instr = nullptr;  // name of the instruction that is being issued
  std::string text() const;            // "rank 1, step 12, instruction blk.3.qkv.forward"
};

// Throw Error(internal): "<place>: <call> failed: <CUDA's text> (<name>)<more>". CUDA reports what
// kernels and copies did at later calls, so `more` should say what ran.
[[noreturn]] void throw_cuda(cudaError_t error, const char* call, const Place& place,
                             const std::string& more = "");
// … Error(no_progress), since a peer's end is the usual cause.
[[noreturn]] void throw_nccl(ncclResult_t result, const char* call, ncclComm_t communicator,
                             const Place& place);

// For calls outside of a device's lanes.
inline void check(cudaError_t error, const char* call, const Place& place) {
  if (error != cudaSuccess) throw_cuda(error, call, place);
}

}  // namespace spillway::cuda
