// Which backend runs the steps. Everything outside src/runtime/cuda and kernels/cuda reaches CUDA
// through the table below, so that it compiles and links without the toolkit.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "config/config.h"
#include "config/hardware.h"
#include "runtime/device.h"

namespace spillway {

struct CudaDeviceRequest {
  int64_t reserve_bytes = 0;    // foreign bytes that the plan was made with, for messages
  int64_t gemm_workspace = 0;   // the profile's
  std::string gemm_algorithms;  // of the checkpoint that is resumed, or ""
  std::function<void(const std::string&)> say;  // lines for the user
};

// What src/runtime/cuda offers. Errors are thrown as Error.
struct CudaBackend {
  // "" if this process can use a device; else why not, as the end of a sentence.
  std::string (*unavailable)();
  // One device a rank: its index on this rank. Collective; throws Error(bad_input) on all ranks if
  // two would share one.
  int (*assign_device)(Communicator& communicator);
  // An estimate from the properties of a device.
  HardwareProfile (*derive_profile)(int device);
  // Not collective; some of the device's start-up steps are (device.h).
  std::unique_ptr<Device> (*make_device)(Communicator& communicator, int device,
                                         const CudaDeviceRequest&);
};

// Defined by src/runtime/cuda where it is linked, else by src/runtime/without_cuda: nullptr.
const CudaBackend* cuda_backend();

struct BackendChoice {
  bool cuda = false;
  int device = 0;    // of this rank, if cuda
  std::string note;  // one line for the user where "auto" fell back on the CPU, else ""
};

// Collective: all ranks choose alike. "auto" takes CUDA if every rank has a device of its own.
// Throws Error(bad_input) on all ranks if "cuda" is wanted and cannot be had.
BackendChoice choose_backend(Backend wanted, Communicator& communicator);

// The profile of a run on `choice`: the one that the config names, or for "auto" on CUDA one that
// is derived from rank 0's device. Collective. Throws Error(bad_input) where a CUDA run names the
// profile of another kind of device.
HardwareProfile profile_for(const BackendChoice& choice, const HardwareConfig& config,
                            Communicator& communicator);

}  // namespace spillway
