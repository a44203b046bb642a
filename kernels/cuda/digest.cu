// digest: integer sums that wrap. Blocks stride over the tensor and keep a partial sum each in the
// workspace; one block adds them. The order does not matter, the bits are always the same. Bound by
// reading the tensor.
#include <algorithm>
#include <device_port.cuh>

#include "graph/ops/digest.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/table.h"
#include "kernels/cuda/workspace.h"

namespace spillway::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr unsigned kAll = 0xFFFFFFFF;

__device__ uint64_t mixed(uint32_t bits, int64_t i) {
  uint64_t z = bits + static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// The sum of every thread's `own`, in thread 0.
__device__ uint64_t of_block(uint64_t own) {
  __shared__ uint64_t warps[kWarps];
  for (int mask = 16; mask > 0; mask /= 2)
    own += __shfl_xor_sync(kAll, static_cast<unsigned long long>(own), mask);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = own;
  __syncthreads();
  uint64_t total = 0;
  if (threadIdx.x == 0)
    for (const uint64_t warp : warps) total += warp;
  return total;
}

__global__ void __launch_bounds__(kThreads)
    digest_parts(const uint32_t* x, int64_t count, uint64_t* parts) {
  uint64_t own = 0;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride)
    own += mixed(x[i], i);
  const uint64_t total = of_block(own);
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kThreads)
    digest_whole(const uint64_t* parts, int count, double* digest) {
  uint64_t own = 0;
  for (int i = threadIdx.x; i < count; i += kThreads) own += parts[i];
  const uint64_t total = of_block(own);
  if (threadIdx.x == 0) *digest = static_cast<double>(total >> 11);
}

}  // namespace

void digest(const KernelArgs& args, const LaunchContext& context) {
  const int64_t count = args.in[0].dims.count();
  const int blocks =
      static_cast<int>(std::min<int64_t>(kDigestParts, ceil_div(count, int64_t{kThreads})));
  Workspace workspace("digest", args);
  uint64_t* parts = workspace.take_array<uint64_t>(kDigestParts);
  launch(digest_parts, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, context.stream,
         args.in[0].as<uint32_t>(), count, parts);
  launch(digest_whole, dim3(1), dim3(kThreads), 0, context.stream, parts, blocks,
         args.out[0].as<double>());
}

}  // namespace spillway::cuda
