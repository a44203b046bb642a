// The emulated twin of kernels/cuda/port/device_port.cuh: same names, for kernels that g++
// compiles. It also supplies what nvcc knows by itself: built-in variables, barriers, shuffles,
// intrinsics.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "kernels/cuda/context.h"
#include "tests/emulated_cuda/port/device_builtins.h"
#include "tests/emulated_cuda/port/launch.h"
#include "tests/emulated_cuda/port/warp.h"

#define SPILLWAY_DYNAMIC_SHARED(T, name) \
  T* name = reinterpret_cast<T*>(::spillway::emulated::dynamic_shared())

namespace spillway::cuda {

__device__ __forceinline__ void mma_bf16_m16n8k16(float (&d)[4], const uint32_t (&a)[4],
                                                  const uint32_t (&b)[2]) {
  emulated::MatrixOperands in;
  for (int i = 0; i < 4; ++i) in.a[i] = a[i];
  for (int i = 0; i < 2; ++i) in.b[i] = b[i];
  for (int i = 0; i < 4; ++i) in.d[i] = d[i];
  float out[4];
  emulated::collective(emulated::kAllLanes, emulated::multiply_matrices, &in, sizeof in, out,
                       sizeof out, emulated::here());
  for (int i = 0; i < 4; ++i) d[i] = out[i];
}

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* shared_row) {
  uint32_t out[4];
  emulated::collective(emulated::kAllLanes, emulated::load_matrices, &shared_row, sizeof shared_row,
                       out, sizeof out, emulated::here());
  for (int i = 0; i < 4; ++i) r[i] = out[i];
}

__device__ __forceinline__ void ldmatrix_x4_transposed(uint32_t (&r)[4], const void* shared_row) {
  uint32_t out[4];
  emulated::collective(emulated::kAllLanes, emulated::load_matrices_transposed, &shared_row,
                       sizeof shared_row, out, sizeof out, emulated::here());
  for (int i = 0; i < 4; ++i) r[i] = out[i];
}

__device__ __forceinline__ void cp_async_16(void* shared, const void* global, bool valid = true) {
  emulated::issue_copy(shared, global, 16, valid, emulated::here());
}
__device__ __forceinline__ void cp_async_commit() { emulated::commit_copies(); }
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  emulated::wait_for_copies(kPending, emulated::here());
}

__device__ __forceinline__ float fast_exp2(float x) { return std::exp2(x); }

// Static: it knows the translation unit that it is used in.
template <class... P, class... A>
static void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, A... args) {
  struct Arguments {
    void (*kernel)(P...);
    std::tuple<std::decay_t<P>...> values;
  };
  const auto arguments =
      std::make_shared<const Arguments>(Arguments{kernel, {static_cast<std::decay_t<P>>(args)...}});
  emulated::Launch launch;
  launch.grid = grid;
  launch.block = block;
  launch.shared_bytes = shared_bytes;
  launch.source = __BASE_FILE__;
  launch.kernel = reinterpret_cast<const void*>(kernel);
  launch.body = [](const void* p) {
    const auto& a = *static_cast<const Arguments*>(p);
    std::apply(a.kernel, a.values);
  };
  launch.arguments = arguments.get();
  launch.argument_bytes = sizeof(Arguments);
  check_launch(emulated::enqueue_launch(launch, arguments, stream));
}

}  // namespace spillway::cuda
