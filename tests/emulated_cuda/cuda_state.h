// What the functions of the emulated CUDA runtime share.
#pragma once

#include <driver_types.h>

#include <cstdint>

#include "runtime.h"

namespace spillway::emulated {

// A call of the runtime: `return call.result()` at once if `!call.goes_on()`. An injected error is
// that of a kernel that failed, and stays, as it does on a device; of a call that allocates, that
// memory is short.
class CudaCall : public Call {
 public:
  enum class Kind { plain, allocates };
  explicit CudaCall(const char* name, Kind kind = Kind::plain);
  bool goes_on() const { return error_ == cudaSuccess; }
  cudaError_t result() const { return error_; }
  cudaError_t fail(cudaError_t error);  // also what cudaGetLastError tells

 private:
  cudaError_t error_ = cudaSuccess;
};

// Calls that made something, since the start.
struct Allocations {
  int64_t device = 0, pinned = 0, streams = 0, events = 0;
};
Allocations& allocations();
int64_t& device_bytes_in_use();

}  // namespace spillway::emulated
