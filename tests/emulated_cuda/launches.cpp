#include "launches.h"

#include "cuda_state.h"
#include "port/launch.h"
#include "report.h"
#include "scheduler.h"

namespace spillway::emulated {
namespace {
std::set<std::string>& sources() {
  static auto* const all = new std::set<std::string>;  // read at exit
  return *all;
}
}  // namespace

const std::set<std::string>& launching_sources() { return sources(); }

cudaError_t enqueue_launch(const Launch& launch, std::shared_ptr<const void> arguments,
                           cudaStream_t stream) {
  CudaCall call("cudaLaunchKernelExC");
  if (!call.goes_on()) return call.result();
  if (const char* broken = broken_limit(launch)) {
    report("launch", launch.kernel, "{} in a launch of {}", broken, source_of(launch.kernel));
    return call.fail(cudaErrorInvalidConfiguration);
  }
  const std::string path = launch.source;
  sources().insert(path.substr(path.rfind('/') + 1));
  Launch seeded = launch;
  seeded.seed = draw_seed();
  Work work;
  work.name = "kernel";
  work.code = launch.kernel;
  work.run = [seeded, arguments] { run_grid(seeded); };
  enqueue(stream, std::move(work));
  return cudaSuccess;
}

}  // namespace spillway::emulated
