// Sums over lanes and blocks in one fixed order.
#pragma once

#include <device_port.cuh>

namespace spillway::cuda {

constexpr unsigned kAllLanes = 0xffffffffu;

// Over the lanes of a warp, on every lane with the same bits: each step adds the same two numbers.
template <class T>
__device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(kAllLanes, x, mask);
  return x;
}

// Over the threads of a block (whole warps), on every thread. `warps` is shared memory of 32
// elements, free for another sum once every thread has passed a further barrier.
template <class T>
__device__ __forceinline__ T block_sum(T x, T* warps) {
  x = warp_sum(x);
  const unsigned count = blockDim.x / 32, lane = threadIdx.x % 32;
  if (count == 1) return x;
  if (lane == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  return warp_sum(lane < count ? warps[lane] : T(0));
}

}  // namespace spillway::cuda
