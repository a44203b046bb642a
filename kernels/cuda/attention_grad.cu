// The gradient of causal attention with grouped KV heads, the same bits in every run and on every
// device: no atomics, no order that depends on which block comes first.
//
// With p = exp(s/√d − lse), dp = do·vᵀ and ds = p·(dp − Σ do·o):
//   dv = pᵀ·do, dk = dsᵀ·q/√d   a block owns a tile of keys of one KV head and walks, head by head
//                               of its group and from the diagonal down, the tiles of queries;
//   dq = ds·k/√d                a block owns a tile of queries of one head and walks the key tiles
//                               up to the diagonal.
// A small kernel before both writes Σ do·o of every row and head into the workspace; it is bound by
// memory (two reads of T·H·d elements, 16 bytes a lane) and designed for 85 % of its bandwidth.
//
// The walked operands (q and do, or k and v) come in tiles of 32 rows through two stages: a stage
// fills while the other is worked on, one barrier a tile.
//
// Bound by the tensor cores. Scores and dp are computed in both kernels: seven products instead of
// the five that sums by atomics would take, so at most 5/7 of their rate counts. At d = 64 a warp
// owns 32 rows and uses every fragment twice. At d = 128 the two f32 accumulators of dk and dv
// leave registers for 16 rows only: dv and dk then take their fragments from shared memory in the
// time the tensor cores of sm_80 need, p and dp, which load both sides, in 1.5 times that, so the
// products run at 80 % at best. Designed for 40 % of the dense bf16 rate of sm_80 counted over five
// products (5/7 · 80 % · 70 % for softmax and barriers), 30 % of sm_90's.
//
//                  registers: dk/dv, dq   shared memory a block         blocks an SM (sm_80, sm_90)
//   bf16 d = 64         255, 203          2·16 + 4·4 = 48 KiB           2, 2   (registers)
//   bf16 d = 128        240, 161          2·16 + 4·8 = 64 KiB           2, 2; dq on sm_90 3
//   f32  d = 64         224, 168          2·16 + 4·8 + 9 = 73 KiB       2, 2; dq on sm_90 3
//   f32  d = 128        255, 254          2·32 + 4·16 + 9 = 137 KiB     1, 1   (shared memory)
// and half a KiB of statistics for dk/dv. A stage in flight is 8 KiB (d = 64) or 16 KiB a block.
// f32 is bound by the FMA units and designed for 40 % of their rate (30 % at d = 128).

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_mma.cuh"
#include "kernels/cuda/attention_simt.cuh"
#include "kernels/cuda/context.h"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/cuda/workspace.h"

namespace spillway::cuda {
namespace {

// Σ do·o of every row and head, written as [sequence, head, row]. A row of a head is 16 bytes a
// lane, summed by a butterfly.
template <class T, int kHead>
__global__ void __launch_bounds__(256)
    attention_delta_kernel(AttentionShape shape, const T* o, const T* dout, float* delta) {
  constexpr int kPerLane = kPack<T>, kLanes = kHead / kPerLane;
  const int64_t place = int64_t{blockIdx.x} * 256 + threadIdx.x;
  const int64_t all = int64_t{shape.sequences} * shape.context * shape.heads;
  const int64_t item = min(place / kLanes, all - 1);  // of [row, head]; whole warps shuffle
  const int64_t from = item * kHead + place % kLanes * kPerLane;
  const auto load = [&](const T* row) {
    return widen(shape.aligned ? load_pack<true>(row, kPerLane) : load_pack<false>(row, kPerLane));
  };
  const auto x = load(o + from), y = load(dout + from);
  float sum = 0;
#pragma unroll
  for (int e = 0; e < kPerLane; ++e) sum = fmaf(x.v[e], y.v[e], sum);
#pragma unroll
  for (int lane = kLanes / 2; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
  if (place % kLanes != 0 || place / kLanes >= all) return;
  const int64_t row = item / shape.heads, head = item % shape.heads;
  delta[(row / shape.context * shape.heads + head) * shape.context + row % shape.context] = sum;
}

// Elements of shared memory of either kernel: two owned tiles, two stages of two walked tiles.
template <class Tile>
constexpr int kGradElements = (2 * Tile::kRows + 4 * Tile::kCols) * Tile::kHead + Tile::kScratch;

template <class Tile, int kBlocks>
__global__ void __launch_bounds__(Tile::kThreads, kBlocks)
    attention_dq_kernel(AttentionShape shape, const typename Tile::T* qkv,
                        const typename Tile::T* dout, const float* lse, const float* delta,
                        typename Tile::T* dqkv) {
  using T = typename Tile::T;
  constexpr int kHead = Tile::kHead, kRows = Tile::kRows, kCols = Tile::kCols;
  SPILLWAY_DYNAMIC_SHARED(T, shared);
  constexpr int kOwned = kRows * kHead, kStages = 2 * kOwned, kStage = 2 * kCols * kHead;
  constexpr int kScratch = kStages + 2 * kStage;

  const int tiles = (shape.context + kRows - 1) / kRows;
  const AttentionPlace place(blockIdx.x, tiles, shape.heads);
  const int first = (tiles - 1 - place.tile) * kRows;
  const int limit = min(first + kRows, shape.context);
  const int group = shape.heads / shape.kv_heads;
  const int64_t row0 = int64_t{place.sequence} * shape.context;
  const int64_t head_at = int64_t{place.head} * kHead;
  const T* q = qkv + row0 * shape.pitch + head_at;
  const T* k = qkv + row0 * shape.pitch + (int64_t{shape.heads} + place.head / group) * kHead;
  const T* v = k + int64_t{shape.kv_heads} * kHead;
  const int64_t statistics = (int64_t{place.sequence} * shape.heads + place.head) * shape.context;

  const auto load = [&](int stage, int key) {
    T* tile = shared + kStages + stage * kStage;
    load_tile<kCols, kHead, Tile::kThreads>(tile, k, shape.pitch, key, shape.context,
                                            shape.aligned);
    load_tile<kCols, kHead, Tile::kThreads>(tile + kStage / 2, v, shape.pitch, key, shape.context,
                                            shape.aligned);
    cp_async_commit();
  };
  load_tile<kRows, kHead, Tile::kThreads>(shared, q, shape.pitch, first, shape.context,
                                          shape.aligned);
  load_tile<kRows, kHead, Tile::kThreads>(shared + kOwned, dout + row0 * shape.o_pitch + head_at,
                                          shape.o_pitch, first, shape.context, shape.aligned);
  load(0, 0);

  const float to_log2 = shape.scale * kLog2E;
  const int warp_first = first + Tile::warp_row();
  float shift[Tile::kSlots], mean[Tile::kSlots];
#pragma unroll
  for (int i = 0; i < Tile::kSlots; ++i) {
    const int row = first + Tile::row(i);
    shift[i] = row < shape.context ? lse[statistics + row] * kLog2E : 0;
    mean[i] = row < shape.context ? delta[statistics + row] : 0;
  }
  typename Tile::Sums dq;
  for (int key = 0, stage = 0; key < limit; key += kCols, stage ^= 1) {
    cp_async_wait<0>();
    __syncthreads();  // this stage has arrived, and every warp is done with the other
    if (key + kCols < limit) load(stage ^ 1, key + kCols);
    if (key >= warp_first + Tile::kWarpRows) continue;

    const int k_tile = kStages + stage * kStage;
    typename Tile::Scores p, dp;
    Tile::multiply_transposed(p, shared, 0, k_tile);
    Tile::multiply_transposed(dp, shared, kOwned, k_tile + kStage / 2);
#pragma unroll
    for (int i = 0; i < Tile::kSlots; ++i)
#pragma unroll
      for (int j = 0; j < Tile::kSlotCols; ++j) {
        float& x = Tile::at(p, i, j);
        x = fast_exp2(fmaf(x, to_log2, -shift[i])) * (Tile::at(dp, i, j) - mean[i]);
      }
    if (key + kCols - 1 > warp_first) {
#pragma unroll
      for (int i = 0; i < Tile::kSlots; ++i)
#pragma unroll
        for (int j = 0; j < Tile::kSlotCols; ++j)
          if (key + Tile::col(j) > first + Tile::row(i)) Tile::at(p, i, j) = 0;
    }
    Tile::multiply(dq, p, shared, k_tile, kScratch);
  }

#pragma unroll
  for (int i = 0; i < Tile::kSlots; ++i) Tile::scale(dq, i, shape.scale);
  Tile::store(dq, shared, dqkv + row0 * shape.pitch + head_at, shape.pitch, first, shape.context,
              shape.aligned);
}

template <class Tile, int kBlocks>
__global__ void __launch_bounds__(Tile::kThreads, kBlocks)
    attention_dkdv_kernel(AttentionShape shape, const typename Tile::T* qkv,
                          const typename Tile::T* dout, const float* lse, const float* delta,
                          typename Tile::T* dqkv) {
  using T = typename Tile::T;
  constexpr int kHead = Tile::kHead, kRows = Tile::kRows, kCols = Tile::kCols;
  static_assert(Tile::kThreads >= 2 * kCols);
  SPILLWAY_DYNAMIC_SHARED(T, shared);
  constexpr int kOwned = kRows * kHead, kStages = 2 * kOwned, kStage = 2 * kCols * kHead;
  constexpr int kScratch = kStages + 2 * kStage;
  // By stage lse·log2(e) of every query, then Σ do·o.
  float* statistics = reinterpret_cast<float*>(shared + kGradElements<Tile>);

  const int tiles = (shape.context + kRows - 1) / kRows;
  const AttentionPlace place(blockIdx.x, tiles, shape.kv_heads);
  const int first = place.tile * kRows;
  const int group = shape.heads / shape.kv_heads;
  const int64_t row0 = int64_t{place.sequence} * shape.context;
  const int64_t k_at = row0 * shape.pitch + (int64_t{shape.heads} + place.head) * kHead;
  const int64_t v_at = k_at + int64_t{shape.kv_heads} * kHead;

  // The walk: every head of the group, and of each the query tiles from `start` on.
  const int start = first / kCols * kCols;
  const int steps = group * ((shape.context - start + kCols - 1) / kCols);
  int ahead_head = place.head * group, ahead = start;  // of the next load
  const int column = threadIdx.x % kCols;
  float next = 0;  // the next stage's lse (threads below kCols) or Σ do·o (the next kCols)
  const auto load = [&](int stage) {
    const int head = ahead_head, query = ahead;
    ahead += kCols;
    if (ahead >= shape.context) ahead = start, ++ahead_head;
    T* tile = shared + kStages + stage * kStage;
    load_tile<kCols, kHead, Tile::kThreads>(tile, qkv + row0 * shape.pitch + int64_t{head} * kHead,
                                            shape.pitch, query, shape.context, shape.aligned);
    load_tile<kCols, kHead, Tile::kThreads>(tile + kStage / 2,
                                            dout + row0 * shape.o_pitch + int64_t{head} * kHead,
                                            shape.o_pitch, query, shape.context, shape.aligned);
    cp_async_commit();
    const int64_t at =
        (int64_t{place.sequence} * shape.heads + head) * shape.context + query + column;
    const bool valid = query + column < shape.context;
    // Beyond the last query p is exp2(−∞) = 0.
    if (threadIdx.x < kCols)
      next = valid ? lse[at] * kLog2E : INFINITY;
    else if (threadIdx.x < 2 * kCols)
      next = valid ? delta[at] : 0;
  };
  load_tile<kRows, kHead, Tile::kThreads>(shared, qkv + k_at, shape.pitch, first, shape.context,
                                          shape.aligned);
  load_tile<kRows, kHead, Tile::kThreads>(shared + kOwned, qkv + v_at, shape.pitch, first,
                                          shape.context, shape.aligned);
  load(0);

  const float to_log2 = shape.scale * kLog2E;
  const int warp_first = first + Tile::warp_row();
  typename Tile::Sums dk, dv;
  int query_after = start;
  for (int step = 0, stage = 0; step < steps; ++step, stage ^= 1) {
    const int query = query_after;
    query_after = query + kCols < shape.context ? query + kCols : start;
    if (threadIdx.x < 2 * kCols) statistics[stage * 2 * kCols + threadIdx.x] = next;
    cp_async_wait<0>();
    __syncthreads();  // this stage has arrived, and every warp is done with the other
    if (step + 1 < steps) load(stage ^ 1);
    if (query + kCols <= warp_first) continue;

    const int q_tile = kStages + stage * kStage, do_tile = q_tile + kStage / 2;
    typename Tile::Scores p, dp;
    Tile::multiply_transposed(p, shared, 0, q_tile);
#pragma unroll
    for (int j = 0; j < Tile::kSlotCols; ++j) {
      const float shift = statistics[stage * 2 * kCols + Tile::col(j)];
#pragma unroll
      for (int i = 0; i < Tile::kSlots; ++i) {
        float& x = Tile::at(p, i, j);
        x = fast_exp2(fmaf(x, to_log2, -shift));
      }
    }
    if (query < warp_first + Tile::kWarpRows - 1) {
#pragma unroll
      for (int i = 0; i < Tile::kSlots; ++i)
#pragma unroll
        for (int j = 0; j < Tile::kSlotCols; ++j)
          if (first + Tile::row(i) > query + Tile::col(j)) Tile::at(p, i, j) = 0;
    }
    Tile::multiply(dv, p, shared, do_tile, kScratch);
    Tile::multiply_transposed(dp, shared, kOwned, do_tile);
#pragma unroll
    for (int j = 0; j < Tile::kSlotCols; ++j) {
      const float mean = statistics[stage * 2 * kCols + kCols + Tile::col(j)];
#pragma unroll
      for (int i = 0; i < Tile::kSlots; ++i) Tile::at(p, i, j) *= Tile::at(dp, i, j) - mean;
    }
    Tile::multiply(dk, p, shared, q_tile, kScratch);
  }

#pragma unroll
  for (int i = 0; i < Tile::kSlots; ++i) Tile::scale(dk, i, shape.scale);
  Tile::store(dk, shared, dqkv + k_at, shape.pitch, first, shape.context, shape.aligned);
  Tile::store(dv, shared + kOwned, dqkv + v_at, shape.pitch, first, shape.context, shape.aligned);
}

template <class Tile, int kDqBlocks, int kDkdvBlocks>
void enqueue(const AttentionShape& shape, const KernelArgs& args, const LaunchContext& context) {
  using T = typename Tile::T;
  const T* qkv = args.in[0].as<T>();
  const T* o = args.in[1].as<T>();
  const float* lse = args.in[2].as<float>();
  const T* dout = args.in[3].as<T>();
  T* dqkv = args.out[0].as<T>();
  Workspace workspace("attention_grad", args);
  float* delta =
      workspace.take_array<float>(int64_t{shape.sequences} * shape.context * shape.heads);

  const int64_t lanes = int64_t{shape.sequences} * shape.context * shape.o_pitch /
                        TileLayout<T, Tile::kHead>::kPerChunk;
  launch(attention_delta_kernel<T, Tile::kHead>, dim3(static_cast<unsigned>(ceil_div(lanes, 256))),
         dim3(256), 0, context.stream, shape, o, dout, delta);
  const int64_t tiles = ceil_div(shape.context, Tile::kRows) * shape.sequences;
  constexpr size_t kBytes = kGradElements<Tile> * sizeof(T);
  constexpr size_t kStatisticsBytes = 4 * Tile::kCols * sizeof(float);
  launch(attention_dkdv_kernel<Tile, kDkdvBlocks>,
         dim3(static_cast<unsigned>(tiles * shape.kv_heads)), dim3(Tile::kThreads),
         kBytes + kStatisticsBytes, context.stream, shape, qkv, dout, lse, delta, dqkv);
  launch(attention_dq_kernel<Tile, kDqBlocks>, dim3(static_cast<unsigned>(tiles * shape.heads)),
         dim3(Tile::kThreads), kBytes, context.stream, shape, qkv, dout, lse, delta, dqkv);
}

}  // namespace

void attention_grad(const KernelArgs& args, const LaunchContext& context) {
  const AttentionShape shape = attention_shape(args);
  if (args.in[0].dtype == Dtype::bf16) {
    if (args.attrs->head_dim == 64)
      enqueue<MmaTile<64, 2, 32>, 2, 2>(shape, args, context);
    else
      enqueue<MmaTile<128, 1, 32>, 2, 2>(shape, args, context);
  } else {
    if (args.attrs->head_dim == 64)
      enqueue<SimtTile<64>, 2, 2>(shape, args, context);
    else
      enqueue<SimtTile<128>, 1, 1>(shape, args, context);
  }
}

}  // namespace spillway::cuda
