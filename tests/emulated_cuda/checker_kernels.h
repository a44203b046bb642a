// Small kernels, right and wrong, for the checker's own test.
#pragma once

#include <cuda_runtime_api.h>

namespace spillway::cuda {

// out[i] = in[i] · 2 for i < count, 16 bytes a thread; `shift` floats beyond both.
void twice(const float* in, float* out, int count, int shift, cudaStream_t stream);
// out[block] = Σ in of its 128 elements, through shared memory.
enum class Flaw {
  none,
  no_barrier,         // between writing and reading shared memory
  reused_early,       // shared memory is written again while others read
  unwritten,          // reads shared memory that nothing wrote
  beyond_shared,      // one element too far
  divergent_barrier,  // half the threads wait elsewhere
  half_mask,          // a shuffle whose mask names lanes that do not come
};
void sums(const float* in, float* out, int blocks, Flaw flaw, cudaStream_t stream);
// Copies 32 rows of 16 bytes through cp.async.
enum class CopyFlaw { none, no_wait, no_barrier, overwritten };
void through_shared(const float* in, float* out, CopyFlaw flaw, cudaStream_t stream);
// d[16,8] = a[16,16] · b[8,16]ᵀ in bf16, f32 result; transposed: b is [16,8].
void multiply(const void* a, const void* b, float* d, bool transposed, cudaStream_t stream);
// All blocks write out[0]; or block 0 writes what the others read.
void collide(float* out, bool reads, cudaStream_t stream);
// Lanes of a warp exchange values through shared memory, with or without __syncwarp.
void exchange(const int* in, int* out, bool synchronised, cudaStream_t stream);
// Reads memory of the host.
void dereference(const float* host, float* out, cudaStream_t stream);

}  // namespace spillway::cuda
