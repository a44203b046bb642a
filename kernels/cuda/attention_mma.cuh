// Products of attention tiles on the tensor cores: bf16 operands, f32 sums, mma.sync m16n8k16.
//
// A block of four warps owns 64·kRowTiles rows of one operand and walks the other in tiles of kCols
// rows. Each warp owns 16·kRowTiles of the rows, so scores never cross warps, and the accumulator
// of one product is, element for element, the left operand of the next.
//
// What it costs: fragments of the walked operand are read from shared memory by every warp, 256
// bytes for each m16n8k16 of the first row tile, which at 128 bytes a clock takes two clocks, as
// long as the A100's tensor cores take for that product. Two row tiles a warp use each fragment
// twice and halve the load; where registers forbid it, one row tile runs at the balance point.
#pragma once

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/vector_access.cuh"

namespace spillway::cuda {

template <int kHead_, int kRowTiles, int kCols_>
struct MmaTile {
  using T = Bf16;
  using Layout = TileLayout<T, kHead_>;
  static constexpr int kHead = kHead_, kCols = kCols_;
  static constexpr int kThreads = 128;
  static constexpr int kWarpRows = 16 * kRowTiles, kRows = 4 * kWarpRows;
  static constexpr int kSlots = 2 * kRowTiles;  // rows of which a thread holds elements
  static constexpr int kSlotCols = kCols / 4;   // elements of each, of a tile of scores
  static constexpr int kScratch = 0;            // elements of shared memory of its own
  struct Scores {
    float v[kRowTiles][kCols / 8][4] = {};
  };
  struct Sums {
    float v[kRowTiles][kHead / 8][4] = {};
  };

  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int warp_row() { return threadIdx.x / 32 * kWarpRows; }
  static __device__ __forceinline__ int row(int slot) {
    return warp_row() + slot / 2 * 16 + slot % 2 * 8 + lane() / 4;
  }
  static __device__ __forceinline__ int col(int j) { return j / 2 * 8 + lane() % 4 * 2 + j % 2; }
  static __device__ __forceinline__ float& at(Scores& s, int slot, int j) {
    return s.v[slot / 2][j / 2][slot % 2 * 2 + j % 2];
  }
  static __device__ __forceinline__ void scale(Sums& sums, int slot, float factor) {
#pragma unroll
    for (int n = 0; n < kHead / 8; ++n) {
      sums.v[slot / 2][n][slot % 2 * 2] *= factor;
      sums.v[slot / 2][n][slot % 2 * 2 + 1] *= factor;
    }
  }

  // Over the four lanes that share a row.
  static __device__ __forceinline__ float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
  }
  static __device__ __forceinline__ float row_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
  }
  static __device__ __forceinline__ bool leads_row() { return lane() % 4 == 0; }

  // Tiles of the products are given by the offset of their first element in shared memory. Two
  // chunks further along a row is one exclusive or, and sixteen rows down keeps the place in the
  // row: offset(row + 16, chunk + 2k) = (offset(row, chunk) ^ 16k) + 16·kHead for a chunk of 0
  // or 1.

  // scores += own rows of a · bᵀ, over the head's elements. Unrolled by two only: more spills.
  static __device__ __forceinline__ void multiply_transposed(Scores& s, const T* shared, int a,
                                                             int b) {
    const int from_a = a + Layout::offset(warp_row() + lane() % 16, lane() / 16);
    const int from_b = b + Layout::offset(lane() % 8 + lane() / 16 * 8, lane() / 8 % 2);
#pragma unroll 2
    for (int k = 0; k < kHead / 16; ++k) {
      uint32_t left[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m)
        ldmatrix_x4(left[m], shared + (from_a ^ k * 16) + m * 16 * kHead);
#pragma unroll
      for (int n = 0; n < kCols / 16; ++n) {
        uint32_t right[4];
        ldmatrix_x4(right, shared + (from_b ^ k * 16) + n * 16 * kHead);
        const uint32_t low[2] = {right[0], right[1]}, high[2] = {right[2], right[3]};
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          mma_bf16_m16n8k16(s.v[m][2 * n], left[m], low);
          mma_bf16_m16n8k16(s.v[m][2 * n + 1], left[m], high);
        }
      }
    }
  }

  // sums += p · b, with p rounded to bf16.
  static __device__ __forceinline__ void multiply(Sums& sums, const Scores& p, T* shared, int b,
                                                  int) {
    const int from_b = b + Layout::offset(lane() % 16, lane() / 16);
    uint32_t left[kRowTiles][kCols / 16][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int k = 0; k < kCols / 16; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float(&pair)[4] = p.v[m][2 * k + i / 2];
          left[m][k][i] = narrow_pair(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
        }
#pragma unroll
    for (int n = 0; n < kHead / 16; ++n) {
#pragma unroll
      for (int k = 0; k < kCols / 16; ++k) {
        uint32_t right[4];
        ldmatrix_x4_transposed(right, shared + (from_b ^ n * 16) + k * 16 * kHead);
        const uint32_t low[2] = {right[0], right[1]}, high[2] = {right[2], right[3]};
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          mma_bf16_m16n8k16(sums.v[m][2 * n], left[m][k], low);
          mma_bf16_m16n8k16(sums.v[m][2 * n + 1], left[m][k], high);
        }
      }
    }
  }

  // Rounds the sums to bf16 and writes those of rows below `limit` by way of `tile`, whose own rows
  // only this warp has been reading.
  static __device__ __forceinline__ void store(const Sums& sums, T* tile, T* target, int64_t pitch,
                                               int first, int limit, bool aligned) {
    __syncwarp();
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int n = 0; n < kHead / 8; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          T* to = tile + Layout::offset(row(2 * m + h), n) + lane() % 4 * 2;
          *reinterpret_cast<uint32_t*>(to) =
              narrow_pair(sums.v[m][n][2 * h], sums.v[m][n][2 * h + 1]);
        }
    store_rows<kWarpRows, kHead>(tile, target, pitch, first, warp_row(), limit, aligned);
  }
};

}  // namespace spillway::cuda
