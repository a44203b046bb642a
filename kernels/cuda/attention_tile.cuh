// What the attention kernels share: where heads stand in packed qkv, and tiles of rows of one head
// in shared memory.
#pragma once

#include <cstdint>
#include <device_port.cuh>

#include "kernels/cuda/attention.h"

namespace spillway::cuda {

constexpr float kLog2E = 1.4426950408889634f;

// Which head of which sequence a block works on, blocks of one head side by side.
struct AttentionPlace {
  int32_t tile, sequence, head;
  __device__ AttentionPlace(int32_t block, int32_t tiles, int32_t heads)
      : tile(block % tiles), sequence(block / tiles / heads), head(block / tiles % heads) {}
};

// A row of a tile is kHead elements in chunks of 16 bytes. Chunk c of row r stands in place of
// chunk c ^ (r % 8): eight neighbouring rows at one chunk, and eight chunks of one row, lie in
// eight different groups of four banks, so neither ldmatrix, nor float4 loads, nor cp.async
// conflict.
template <class T, int kHead>
struct TileLayout {
  static constexpr int kPerChunk = 16 / static_cast<int>(sizeof(T));
  static constexpr int kChunks = kHead / kPerChunk;
  static __device__ __forceinline__ int offset(int row, int chunk) {
    return (row * kChunks + (chunk ^ (row & 7))) * kPerChunk;
  }
};

// Brings rows first … first+kRows-1 of a head into a tile; rows from `limit` on are zero. `source`
// is the head's element 0 of row 0. 16-byte rows come by cp.async and are there after its wait; the
// others by plain loads, at once. Either way a barrier must follow before other threads read.
template <int kRows, int kHead, int kThreads, class T>
__device__ __forceinline__ void load_tile(T* tile, const T* source, int64_t pitch, int first,
                                          int limit, bool aligned) {
  using Layout = TileLayout<T, kHead>;
  constexpr int kAtOnce = kThreads / Layout::kChunks;  // rows
  static_assert(kRows % kAtOnce == 0 && kThreads % Layout::kChunks == 0);
  const int row0 = static_cast<int>(threadIdx.x) / Layout::kChunks;
  const int chunk = static_cast<int>(threadIdx.x) % Layout::kChunks;
  // Inside a tile 32 bits do, and spare registers where the kernels have none.
  const T* base = source + first * pitch;
  const uint32_t step = static_cast<uint32_t>(pitch) * kAtOnce;
  uint32_t from = static_cast<uint32_t>(row0) * static_cast<uint32_t>(pitch) +
                  static_cast<uint32_t>(chunk * Layout::kPerChunk);
  if (aligned) {
#pragma unroll
    for (int row = 0; row < kRows; row += kAtOnce, from += step) {
      const bool valid = row0 + row < limit - first;
      cp_async_16(tile + Layout::offset(row0 + row, chunk), base + (valid ? from : 0), valid);
    }
  } else {
#pragma unroll 1
    for (int row = 0; row < kRows; row += kAtOnce, from += step) {
      const bool valid = row0 + row < limit - first;
      T* to = tile + Layout::offset(row0 + row, chunk);
#pragma unroll 1
      for (int e = 0; e < Layout::kPerChunk; ++e) to[e] = valid ? base[from + e] : T(0.0f);
    }
  }
}

// Writes kRows rows of a tile, from tile row `row0`, to rows first+row0 … of a head below `limit`.
// One warp does it, after it alone wrote them.
template <int kRows, int kHead, class T>
__device__ __forceinline__ void store_rows(const T* tile, T* target, int64_t pitch, int first,
                                           int row0, int limit, bool aligned) {
  using Layout = TileLayout<T, kHead>;
  __syncwarp();
  const int lane = threadIdx.x % 32;
#pragma unroll 4
  for (int i = lane; i < kRows * Layout::kChunks; i += 32) {
    const int row = row0 + i / Layout::kChunks, chunk = i % Layout::kChunks;
    if (first + row >= limit) continue;
    const T* from = tile + Layout::offset(row, chunk);
    T* to = target + (first + row) * pitch + chunk * Layout::kPerChunk;
    if (aligned) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
#pragma unroll
      for (int e = 0; e < Layout::kPerChunk; ++e) to[e] = from[e];
    }
  }
}

}  // namespace spillway::cuda
