// Operations that give each element from the same elements of their inputs. A thread does one pack
// of 16 bytes an array and ends, so a multiprocessor's 2048 threads keep 32 KB an input in flight
// (3.35 TB/s over 600 ns of latency need 15 KB on each of 132).
#pragma once

#include <device_port.cuh>

#include "kernels/cuda/vector_access.cuh"

namespace spillway::cuda {

constexpr int kElementwiseThreads = 256;

// Calls body(first element, live elements) for a pack of kPack<T> of `count`. Whole packs have a
// call of their own, in which no load waits for a branch.
template <class T, class Body>
__device__ __forceinline__ void my_pack(int64_t count, const Body& body) {
  const int64_t at =
      (int64_t{blockIdx.x} * kElementwiseThreads + static_cast<int>(threadIdx.x)) * kPack<T>;
  if (at + kPack<T> <= count)
    body(at, int64_t{kPack<T>});
  else if (at < count)
    body(at, count - at);
}

template <class T, class Args>
void launch_elementwise(void (*kernel)(Args), int64_t count, const Args& args,
                        cudaStream_t stream) {
  if (count > 0)
    launch(kernel, blocks_for(ceil_div(count, kPack<T>), kElementwiseThreads),
           dim3(kElementwiseThreads), 0, stream, args);
}

// 1 / (1 + e⁻ˣ). In bf16 by the special function units (relative error 10⁻⁶, far below a bf16's
// rounding): the exact forms would take more instructions an element than its bytes leave time for.
template <class T>
__device__ __forceinline__ float sigmoid(float x) {
  if constexpr (sizeof(T) == 2)
    return __fdividef(1.0f, 1.0f + fast_exp2(-1.44269504f * x));
  else
    return __fdiv_rn(1.0f, 1.0f + expf(-x));
}

}  // namespace spillway::cuda
