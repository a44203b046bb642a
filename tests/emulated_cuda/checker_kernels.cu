#include <cuda_bf16.h>

#include <device_port.cuh>

#include "tests/emulated_cuda/checker_kernels.h"

namespace spillway::cuda {
namespace {

constexpr unsigned kEveryLane = 0xFFFFFFFFu;

__global__ void twice_kernel(const float* in, float* out, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (i >= count) return;
  float4 v = *reinterpret_cast<const float4*>(in + i);
  v.x *= 2, v.y *= 2, v.z *= 2, v.w *= 2;
  *reinterpret_cast<float4*>(out + i) = v;
}

__global__ void __launch_bounds__(128) sum_kernel(const float* in, float* out, Flaw flaw) {
  __shared__ float partial[4];
  SPILLWAY_DYNAMIC_SHARED(float, row);
  const unsigned t = threadIdx.x;
  row[t] = in[blockIdx.x * 128 + t];
  if (flaw != Flaw::no_barrier) __syncthreads();
  float sum = row[flaw == Flaw::beyond_shared ? t + 1 : 127 - t];
  if (flaw == Flaw::half_mask && t < 16) sum += __shfl_xor_sync(kEveryLane, sum, 1);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kEveryLane, sum, step);
  if (t % 32 == 0 && (flaw != Flaw::unwritten || t > 0)) partial[t / 32] = sum;
  if (flaw == Flaw::reused_early) row[t] = sum;
  if (flaw == Flaw::divergent_barrier && t < 64)
    __syncthreads();
  else
    __syncthreads();
  if (t == 0) out[blockIdx.x] = partial[0] + partial[1] + partial[2] + partial[3];
}

__global__ void copy_kernel(const float* in, float* out, CopyFlaw flaw) {
  SPILLWAY_DYNAMIC_SHARED(float, tile);
  const unsigned t = threadIdx.x;
  cp_async_16(tile + 4 * t, in + 4 * t);
  cp_async_commit();
  if (flaw != CopyFlaw::no_wait) cp_async_wait<0>();
  if (flaw != CopyFlaw::no_barrier) __syncthreads();
  const float v = tile[127 - t];
  if (flaw == CopyFlaw::overwritten) cp_async_16(tile + 4 * t, in, false);
  cp_async_commit();
  cp_async_wait<0>();
  out[t] = v;
}

__global__ void multiply_kernel(const __nv_bfloat16* a, const __nv_bfloat16* b, float* d,
                                bool transposed) {
  SPILLWAY_DYNAMIC_SHARED(__nv_bfloat16, tile);
  const unsigned lane = threadIdx.x;
  for (unsigned i = lane; i < 256; i += 32) tile[i] = a[i];
  for (unsigned i = lane; i < 128; i += 32) tile[256 + i] = b[i];
  __syncthreads();
  uint32_t left[4], right[4];
  ldmatrix_x4(left, tile + lane % 16 * 16 + lane / 16 * 8);
  if (transposed)
    ldmatrix_x4_transposed(right, tile + 256 + lane % 16 * 8);
  else
    ldmatrix_x4(right, tile + 256 + lane % 8 * 16 + lane / 8 % 2 * 8);
  const uint32_t pair[2] = {right[0], right[1]};
  float sum[4] = {};
  mma_bf16_m16n8k16(sum, left, pair);
  for (int r = 0; r < 4; ++r) d[(lane / 4 + r / 2 * 8) * 8 + lane % 4 * 2 + r % 2] = sum[r];
}

__global__ void collide_kernel(float* out, bool reads) {
  if (reads && blockIdx.x > 0)
    out[blockIdx.x] = out[0];
  else
    out[0] = 1;
}

__global__ void exchange_kernel(const int* in, int* out, bool synchronised) {
  __shared__ int value[32];
  value[threadIdx.x] = in[threadIdx.x];
  if (synchronised) __syncwarp();
  const int other = value[31 - threadIdx.x];
  out[threadIdx.x] = other;
}

__global__ void dereference_kernel(const float* host, float* out) { *out = *host; }

}  // namespace

void twice(const float* in, float* out, int count, int shift, cudaStream_t stream) {
  const unsigned blocks = static_cast<unsigned>((count / 4 + 63) / 64);
  launch(twice_kernel, dim3(blocks), dim3(64), 0, stream, in + shift, out + shift, count);
}
void sums(const float* in, float* out, int blocks, Flaw flaw, cudaStream_t stream) {
  launch(sum_kernel, dim3(static_cast<unsigned>(blocks)), dim3(128), 512, stream, in, out, flaw);
}
void through_shared(const float* in, float* out, CopyFlaw flaw, cudaStream_t stream) {
  launch(copy_kernel, dim3(1), dim3(32), 512, stream, in, out, flaw);
}
void multiply(const void* a, const void* b, float* d, bool transposed, cudaStream_t stream) {
  launch(multiply_kernel, dim3(1), dim3(32), 1024, stream, static_cast<const __nv_bfloat16*>(a),
         static_cast<const __nv_bfloat16*>(b), d, transposed);
}
void collide(float* out, bool reads, cudaStream_t stream) {
  launch(collide_kernel, dim3(4), dim3(1), 0, stream, out, reads);
}
void exchange(const int* in, int* out, bool synchronised, cudaStream_t stream) {
  launch(exchange_kernel, dim3(1), dim3(32), 0, stream, in, out, synchronised);
}
void dereference(const float* host, float* out, cudaStream_t stream) {
  launch(dereference_kernel, dim3(1), dim3(1), 0, stream, host, out);
}

}  // namespace spillway::cuda
