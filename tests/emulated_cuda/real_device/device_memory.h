// Memory of a real device for tests that also run on the emulated one (port/
// holds the twin): filled with NaNs, with a canary behind it.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>
#include <vector>

namespace spillway::test {

constexpr size_t kDeviceCanary = 256;
constexpr char kCanaryByte = 0x5A;

inline std::vector<std::string>& kept_device_reports() {
  static std::vector<std::string> kept;
  return kept;
}

inline char* device_allocate(size_t bytes) {
  char* memory = nullptr;
  const bool done =
      cudaMalloc(reinterpret_cast<void**>(&memory), bytes + kDeviceCanary) == cudaSuccess &&
      cudaMemset(memory, 0xFF, bytes) == cudaSuccess &&
      cudaMemset(memory + bytes, kCanaryByte, kDeviceCanary) == cudaSuccess;
  return done ? memory : nullptr;
}

// As they lie there, written or not.
inline std::vector<char> device_contents(const char* at, size_t bytes) {
  std::vector<char> host(bytes);
  if (cudaMemcpy(host.data(), at, bytes, cudaMemcpyDeviceToHost) != cudaSuccess)
    kept_device_reports().push_back("device memory cannot be read");
  return host;
}

inline void device_release(char* memory, size_t bytes) {
  const std::vector<char> canary = device_contents(memory + bytes, kDeviceCanary);
  if (std::any_of(canary.begin(), canary.end(), [](char c) { return c != kCanaryByte; }))
    kept_device_reports().push_back("writes beyond an operand");
  cudaFree(memory);
}

// What nothing wrote is NaN of itself.
inline bool device_written(const char*, size_t) { return true; }

// What went wrong on the device since the last call.
inline std::vector<std::string> device_reports() {
  std::vector<std::string> all;
  all.swap(kept_device_reports());
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) all.push_back(cudaGetErrorString(error));
  return all;
}

}  // namespace spillway::test
