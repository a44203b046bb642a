// Memory of the emulated device for tests that also run on a real one (real_device/ holds
// the twin): the checker knows what was written and tells what went wrong.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "tests/emulated_cuda/memory.h"
#include "tests/emulated_cuda/report.h"

namespace spillway::test {

inline char* device_allocate(size_t bytes) {
  char* memory = nullptr;
  return cudaMalloc(reinterpret_cast<void**>(&memory), bytes) == cudaSuccess ? memory : nullptr;
}
inline void device_release(char* memory, size_t) { cudaFree(memory); }

// As they lie there, written or not.
inline std::vector<char> device_contents(const char* at, size_t bytes) { return {at, at + bytes}; }

// Whether something wrote all of these bytes.
inline bool device_written(const char* at, size_t bytes) {
  return emulated::written::all(emulated::address_of(at), bytes);
}

// What went wrong on the device since the last call.
inline std::vector<std::string> device_reports() {
  std::vector<std::string> all;
  for (const emulated::Report& r : emulated::take_reports()) all.push_back(r.kind + ": " + r.text);
  return all;
}

}  // namespace spillway::test
