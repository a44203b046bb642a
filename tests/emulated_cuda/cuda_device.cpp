// The emulated CUDA runtime: the device and its description.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda_state.h"
#include "faults.h"

namespace {

using namespace spillway::emulated;

constexpr int kMajor = 9, kMinor = 0;
constexpr int kRuntimeVersion = CUDART_VERSION;
thread_local int current_device = 0;

int multiprocessors() {  // SPILLWAY_EMULATED_SMS: results must not depend on it
  const char* set = std::getenv("SPILLWAY_EMULATED_SMS");
  return set ? std::atoi(set) : 4;
}

int device_count() {  // SPILLWAY_EMULATED_DEVICES
  const char* set = std::getenv("SPILLWAY_EMULATED_DEVICES");
  return set ? std::atoi(set) : 8;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  CudaCall call("cudaGetDeviceCount");
  if (!call.goes_on()) return call.result();
  *count = device_count();
  return *count > 0 ? cudaSuccess : call.fail(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
  CudaCall call("cudaSetDevice");
  if (!call.goes_on()) return call.result();
  if (device < 0 || device >= device_count()) return call.fail(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned) {
  CudaCall call("cudaSetDeviceFlags");
  return call.result();
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  CudaCall call("cudaGetDeviceProperties");
  if (!call.goes_on()) return call.result();
  if (device < 0 || device >= device_count()) return call.fail(cudaErrorInvalidDevice);
  std::memset(properties, 0, sizeof *properties);
  std::snprintf(properties->name, sizeof properties->name, "emulated device");
  properties->major = kMajor;
  properties->minor = kMinor;
  properties->totalGlobalMem = static_cast<size_t>(faults::limits().device_bytes);
  properties->multiProcessorCount = multiprocessors();
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->sharedMemPerBlockOptin = 227 << 10;
  properties->sharedMemPerBlock = 48 << 10;
  properties->memoryBusWidth = 5120;
  properties->pciBusID = device + 1;
  properties->unifiedAddressing = 1;
  properties->canMapHostMemory = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  CudaCall call("cudaDeviceGetAttribute");
  if (!call.goes_on()) return call.result();
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = kMajor;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = kMinor;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = multiprocessors();
      return cudaSuccess;
    case cudaDevAttrClockRate:
      *value = 1'800'000;
      return cudaSuccess;
    case cudaDevAttrMemoryClockRate:
      *value = 2'600'000;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = 227 << 10;
      return cudaSuccess;
    default:
      return call.fail(cudaErrorInvalidValue);
  }
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  CudaCall call("cudaDeviceGetPCIBusId");
  if (!call.goes_on()) return call.result();
  if (device < 0 || device >= device_count()) return call.fail(cudaErrorInvalidDevice);
  std::snprintf(text, static_cast<size_t>(bytes), "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  CudaCall call("cudaDeviceGetStreamPriorityRange");
  if (!call.goes_on()) return call.result();
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kRuntimeVersion;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = kRuntimeVersion;
  return cudaSuccess;
}

#define ERRORS(ERROR)                                                    \
  ERROR(cudaSuccess, "no error")                                         \
  ERROR(cudaErrorInvalidValue, "invalid argument")                       \
  ERROR(cudaErrorMemoryAllocation, "out of memory")                      \
  ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument") \
  ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected")         \
  ERROR(cudaErrorInvalidDevice, "invalid device ordinal")                \
  ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle")       \
  ERROR(cudaErrorNotReady, "device not ready")                           \
  ERROR(cudaErrorLaunchFailure, "unspecified launch failure")            \
  ERROR(cudaErrorHostMemoryNotRegistered, "host memory is not registered")

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
#define ERROR(name, text) \
  case name:              \
    return text;
    ERRORS(ERROR)
#undef ERROR
    default:
      return "unknown error";
  }
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define ERROR(name, text) \
  case name:              \
    return #name;
    ERRORS(ERROR)
#undef ERROR
    default:
      return "cudaErrorUnknown";
  }
}

}  // extern "C"
