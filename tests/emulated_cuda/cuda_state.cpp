#include "cuda_state.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "block.h"
#include "faults.h"
#include "launches.h"
#include "warp_counts.h"

namespace spillway::emulated {
namespace {

cudaError_t lasting = cudaSuccess, last = cudaSuccess;

// SPILLWAY_EMULATED_STATS names a file ("%r" in it stands for the rank) that gets the counts at
// the end of the process.
void write_stats() {
  std::string path = std::getenv("SPILLWAY_EMULATED_STATS");
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (const size_t at = path.find("%r"); at != std::string::npos)
    path.replace(at, 2, rank ? rank : "0");
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (!file) return;
  const Allocations& made = allocations();
  const Counts& c = counts();
  std::fprintf(
      file,
      "{\"calls\": %lld, \"allocations\": {\"device\": %lld, \"pinned\": %lld, \"streams\": %lld, "
      "\"events\": %lld},\n \"launches\": %llu, \"blocks\": %llu, \"threads\": %llu, "
      "\"collectives\": %llu, \"barriers\": %llu,\n \"sources\": [",
      static_cast<long long>(faults::calls()), static_cast<long long>(made.device),
      static_cast<long long>(made.pinned), static_cast<long long>(made.streams),
      static_cast<long long>(made.events), static_cast<unsigned long long>(c.launches),
      static_cast<unsigned long long>(c.blocks), static_cast<unsigned long long>(c.threads),
      static_cast<unsigned long long>(c.collectives), static_cast<unsigned long long>(c.barriers));
  const char* comma = "";
  for (const std::string& source : launching_sources()) {
    std::fprintf(file, "%s\"%s\"", comma, source.c_str());
    comma = ", ";
  }
  std::fprintf(file, "],\n \"lines\": {");
  comma = "";
  for (const auto& [line, c] : warp_counts::lines()) {
    std::fprintf(
        file, "%s\n  \"%s\": {\"accesses\": %llu, \"divergent\": %llu, \"conflicts\": %llu}", comma,
        line.c_str(), static_cast<unsigned long long>(c.accesses),
        static_cast<unsigned long long>(c.divergent), static_cast<unsigned long long>(c.conflicts));
    comma = ",";
  }
  std::fprintf(file, "}}\n");
  std::fclose(file);
}

}  // namespace

CudaCall::CudaCall(const char* name, Kind kind) : Call(name) {
  static const bool wanted =
      std::getenv("SPILLWAY_EMULATED_STATS") && std::atexit(write_stats) == 0;
  static_cast<void>(wanted);
  if (fails()) {
    error_ = kind == Kind::allocates ? cudaErrorMemoryAllocation : cudaErrorLaunchFailure;
    if (kind == Kind::plain) lasting = error_;
  }
  if (lasting != cudaSuccess) error_ = lasting;
  if (error_ != cudaSuccess) last = error_;
}

cudaError_t CudaCall::fail(cudaError_t error) {
  last = error;
  return error;
}

Allocations& allocations() {
  static Allocations made;
  return made;
}

int64_t& device_bytes_in_use() {
  static int64_t bytes = 0;
  return bytes;
}

}  // namespace spillway::emulated

extern "C" {
cudaError_t cudaGetLastError() {
  using namespace spillway::emulated;
  return std::exchange(last, lasting);
}
cudaError_t cudaPeekAtLastError() { return spillway::emulated::last; }
}
