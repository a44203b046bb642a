// Products of attention tiles in f32 on the FMA units, with the interface of attention_mma.cuh.
//
// A block of 128 threads owns 64 rows, four of them a thread (eight neighbouring lanes share a
// row), and walks the other operand in tiles of 32 rows. A thread's 4 × 4 scores take eight 16-byte
// loads of shared memory for 64 FMAs; a product with the scores passes them through shared memory,
// inside a warp. Bound by the FMA units: a warp's eight loads take 32 clocks at most (rows are
// broadcast), its 64 FMAs an instruction each.
#pragma once

#include "kernels/cuda/attention_tile.cuh"

namespace spillway::cuda {

template <int kHead_>
struct SimtTile {
  using T = float;
  using Layout = TileLayout<T, kHead_>;
  static constexpr int kHead = kHead_, kCols = 32;
  static constexpr int kThreads = 128, kRows = 64, kWarpRows = 16;
  static constexpr int kSlots = 4, kSlotCols = 4;
  static constexpr int kPitch = kCols + 4;  // of scores in shared memory
  static constexpr int kScratch = kRows * kPitch;
  struct Scores {
    float v[kSlots][kSlotCols] = {};
  };
  struct Sums {
    float v[kSlots][kHead / 32][4] = {};  // columns 4·lane(8) + 32·i
  };

  static __device__ __forceinline__ int across() { return threadIdx.x % 8; }
  static __device__ __forceinline__ int warp_row() { return threadIdx.x / 32 * kWarpRows; }
  static __device__ __forceinline__ int row(int slot) { return threadIdx.x / 8 * kSlots + slot; }
  static __device__ __forceinline__ int col(int j) { return across() + 8 * j; }
  static __device__ __forceinline__ float& at(Scores& s, int slot, int j) { return s.v[slot][j]; }
  static __device__ __forceinline__ void scale(Sums& sums, int slot, float factor) {
#pragma unroll
    for (int n = 0; n < kHead / 32; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums.v[slot][n][e] *= factor;
  }

  // Over the eight lanes that share a row.
  static __device__ __forceinline__ float row_max(float x) {
#pragma unroll
    for (int o = 1; o < 8; o *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
    return x;
  }
  static __device__ __forceinline__ float row_sum(float x) {
#pragma unroll
    for (int o = 1; o < 8; o *= 2) x += __shfl_xor_sync(0xffffffffu, x, o);
    return x;
  }
  static __device__ __forceinline__ bool leads_row() { return across() == 0; }

  static __device__ __forceinline__ void multiply_transposed(Scores& s, const T* shared, int a,
                                                             int b) {
#pragma unroll 4
    for (int chunk = 0; chunk < Layout::kChunks; ++chunk) {
      float4 left[kSlots], right[kSlotCols];
#pragma unroll
      for (int i = 0; i < kSlots; ++i)
        left[i] = chunk_of(shared + a + Layout::offset(row(i), chunk));
#pragma unroll
      for (int j = 0; j < kSlotCols; ++j)
        right[j] = chunk_of(shared + b + Layout::offset(col(j), chunk));
#pragma unroll
      for (int i = 0; i < kSlots; ++i)
#pragma unroll
        for (int j = 0; j < kSlotCols; ++j) {
          float x = s.v[i][j];
          x = fmaf(left[i].x, right[j].x, x);
          x = fmaf(left[i].y, right[j].y, x);
          x = fmaf(left[i].z, right[j].z, x);
          s.v[i][j] = fmaf(left[i].w, right[j].w, x);
        }
    }
  }

  static __device__ __forceinline__ void multiply(Sums& sums, const Scores& p, T* shared, int b,
                                                  int scratch) {
    T* own = shared + scratch;
    __syncwarp();  // the scores of the product before have been read
#pragma unroll
    for (int i = 0; i < kSlots; ++i)
#pragma unroll
      for (int j = 0; j < kSlotCols; ++j) own[row(i) * kPitch + col(j)] = p.v[i][j];
    __syncwarp();
#pragma unroll 2
    for (int k = 0; k < kCols; k += 4) {
      float left[kSlots][4];
#pragma unroll
      for (int i = 0; i < kSlots; ++i) {
        const float4 chunk = chunk_of(own + row(i) * kPitch + k);
        left[i][0] = chunk.x, left[i][1] = chunk.y, left[i][2] = chunk.z, left[i][3] = chunk.w;
      }
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int n = 0; n < kHead / 32; ++n) {
          const float4 right = chunk_of(shared + b + Layout::offset(k + e, across() + 8 * n));
#pragma unroll
          for (int i = 0; i < kSlots; ++i) {
            float(&to)[4] = sums.v[i][n];
            to[0] = fmaf(left[i][e], right.x, to[0]);
            to[1] = fmaf(left[i][e], right.y, to[1]);
            to[2] = fmaf(left[i][e], right.z, to[2]);
            to[3] = fmaf(left[i][e], right.w, to[3]);
          }
        }
    }
  }

  static __device__ __forceinline__ void store(const Sums& sums, T* tile, T* target, int64_t pitch,
                                               int first, int limit, bool aligned) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kSlots; ++i)
#pragma unroll
      for (int n = 0; n < kHead / 32; ++n) {
        const float(&from)[4] = sums.v[i][n];
        *reinterpret_cast<float4*>(tile + Layout::offset(row(i), across() + 8 * n)) =
            make_float4(from[0], from[1], from[2], from[3]);
      }
    store_rows<kWarpRows, kHead>(tile, target, pitch, first, warp_row(), limit, aligned);
  }

 private:
  static __device__ __forceinline__ float4 chunk_of(const float* at) {
    return *reinterpret_cast<const float4*>(at);
  }
};

}  // namespace spillway::cuda
