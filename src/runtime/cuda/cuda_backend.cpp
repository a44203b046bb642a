// What the rest of the program sees of this folder: runtime/backend.h.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "kernels/cuda/table.h"
#include "runtime/backend.h"
#include "runtime/cuda/cuda_device.h"

namespace spillway {
namespace {

constexpr int kLeastMajor = 8;  // compute capability

std::string unavailable() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    cudaGetLastError();  // it does not stay
    return fmt::format("this build's CUDA backend finds no device ({})",
                       error == cudaSuccess ? "none is visible" : cudaGetErrorString(error));
  }
  for (int d = 0; d < count; ++d) {
    int major = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, d) != cudaSuccess ||
        major < kLeastMajor)
      return fmt::format("CUDA device {} has compute capability {}.x, and {}.0 is needed", d, major,
                         kLeastMajor);
  }
  return "";
}

// What one rank found; the error is empty if all is well.
struct Assignment {
  int32_t device = 0;
  char name[140] = {};  // bus id and host
  char error[368] = {};
};

// The place among the ranks of a node, unless the launcher shows each rank a device of its own.
Assignment own_device(const Communicator& communicator) {
  Assignment own;
  const cuda::Place place{communicator.rank(), communicator.size()};
  try {
    int count = 0;
    cuda::check(cudaGetDeviceCount(&count), "cudaGetDeviceCount", place);
    const int ranks = communicator.ranks_on_node();
    if (count < ranks && count != 1)
      bad_input(
          "rank {} is one of {} on its node, which has {} CUDA devices: every rank needs one of "
          "its own; start at most {} ranks a node",
          communicator.rank(), ranks, count, count);
    own.device = count >= ranks ? communicator.rank_on_node() : 0;
    char bus[64] = "", host[64] = "";
    cuda::check(cudaDeviceGetPCIBusId(bus, sizeof bus, own.device), "cudaDeviceGetPCIBusId", place);
    gethostname(host, sizeof host - 1);
    std::snprintf(own.name, sizeof own.name, "%s of %s", bus, host);
  } catch (const Error& e) {
    std::snprintf(own.error, sizeof own.error, "%s", e.what());
  }
  return own;
}

int assign_device(Communicator& communicator) {
  const Assignment own = own_device(communicator);
  std::vector<Assignment> all(static_cast<size_t>(communicator.size()));
  communicator.gather(&own, sizeof own, all.data());
  for (const Assignment& a : all)
    if (a.error[0]) throw Error(ExitCode::bad_input, a.error);
  // Two ranks on one device would take its memory behind each other's back.
  for (size_t a = 0; a < all.size(); ++a)
    for (size_t b = a + 1; b < all.size(); ++b)
      if (std::strcmp(all[a].name, all[b].name) == 0)
        bad_input("ranks {} and {} were both given CUDA device {}: every rank needs one of its own",
                  a, b, all[a].name);
  return own.device;
}

HardwareProfile derive_profile(int index) {
  const cuda::Place place;
  cudaDeviceProp p{};
  cuda::check(cudaGetDeviceProperties(&p, index), "cudaGetDeviceProperties", place);
  int clock_khz = 0, memory_khz = 0;
  cuda::check(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, index),
              "cudaDeviceGetAttribute", place);
  cuda::check(cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, index),
              "cudaDeviceGetAttribute", place);
  HardwareConfig config;
  config.profile = "h100-80";  // fractions, latencies and link rates are taken over
  config.backend = Backend::cuda;
  HardwareProfile profile = load_profile(config);
  profile.name = fmt::format("derived from {}", p.name);
  profile.device_bytes = static_cast<int64_t>(p.totalGlobalMem);
  // Multiply-adds a clock and multiprocessor: f32 lanes; dense bf16 tensor cores.
  const double clocks = 1e3 * clock_khz * p.multiProcessorCount;
  const bool hopper = p.major >= 9;
  if (clocks > 0) {
    profile.peak_f32 = clocks * 2 * (p.major == 8 && p.minor == 0 ? 64 : 128);
    profile.peak_bf16 = clocks * 2 * (hopper ? 2048 : p.minor == 0 ? 1024 : 512);
  }
  if (memory_khz > 0 && p.memoryBusWidth > 0)
    profile.memory_bandwidth = 2e3 * memory_khz * p.memoryBusWidth / 8;
  profile.host_bytes = 0;
  return profile;
}

std::unique_ptr<Device> make_device(Communicator& communicator, int index,
                                    const CudaDeviceRequest& request) {
  cuda::CudaDeviceOptions options;
  options.reserve_bytes = request.reserve_bytes;
  options.gemm_algorithms = request.gemm_algorithms;
  options.gemm_workspace = request.gemm_workspace;
  options.say = request.say;
  return std::make_unique<cuda::CudaDevice>(cuda::kernel, communicator, index, options);
}

}  // namespace

const CudaBackend* cuda_backend() {
  static const CudaBackend backend = {unavailable, assign_device, derive_profile, make_device};
  return &backend;
}

}  // namespace spillway
