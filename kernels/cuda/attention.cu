// Causal attention with grouped KV heads, forward: o = softmax(q·kᵀ/√d)·v without ever storing the
// scores, and the logarithm of each row's sum of exponentials for the backward pass.
//
// A block owns a tile of query rows of one head and walks the key tiles up to the diagonal. Online
// softmax in base 2: exp(s/√d − max) = exp2(s·c − max·c) with c = log2(e)/√d, one FMA and one ex2 a
// score. Tiles above the diagonal are never touched; a warp skips tiles that are beyond its own
// rows, and compares columns with rows only where a tile crosses them. K and V come in tiles of 32
// rows through two stages: a stage fills while the other is worked on, one barrier a tile. Heavy
// tiles of a head start first, so the blocks that end a launch are short.
//
// Bound by the tensor cores: 4·d FLOPs for each visible (query, key) pair against 4·d bytes of K
// and V for each 128 queries, from L2. Per warp and tile (32 × 32 scores) d = 128 has 128 products
// of 8 clocks each on an sm_80 quarter, 1024 clocks, beside about 300 issue slots of other work (48
// ldmatrix, 32 FMA, 32 ex2 that hold the special-function unit for 256 clocks, the maxima, sums and
// conversions) that the second warp of the scheduler hides under them; d = 64 has 512 clocks beside
// the same softmax. Shared memory delivers its fragments in half the tensor cores' time. Designed
// for 60 % (d = 128) and 50 % (d = 64) of the dense bf16 rate of sm_80; on sm_90 mma.sync itself
// reaches about 62 % of what wgmma does, so for 40 % and 35 % there.
//
//                registers   shared memory a block           blocks an SM (sm_80, sm_90)
//   bf16 d = 64     166      16 + 4·4 = 32 KiB                3, 3   (registers; 12 warps)
//   bf16 d = 128    244      32 + 4·8 = 64 KiB                2, 2   (registers; 8 warps)
//   f32  d = 64     168      16 + 4·8 + 9 = 57 KiB            2, 3   (shared memory, registers)
//   f32  d = 128    248      32 + 4·16 + 9 = 105 KiB          1, 2   (shared memory)
// A stage in flight is 8 KiB (d = 64) or 16 KiB a block: 24–32 KiB an SM, more than the 10–16 KiB
// that latency × bandwidth of L2 asks for (500 ns at 20–30 bytes a clock).
//
// f32 is bound by the FMA units and designed for half their rate.

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_mma.cuh"
#include "kernels/cuda/attention_simt.cuh"
#include "kernels/cuda/context.h"
#include "kernels/cuda/table.h"

namespace spillway::cuda {
namespace {

// Elements of shared memory: the q tile, two stages of k and v tiles, the products' scratch.
template <class Tile>
constexpr int kForwardElements = (Tile::kRows + 4 * Tile::kCols) * Tile::kHead + Tile::kScratch;

template <class Tile, int kBlocks>
__global__ void __launch_bounds__(Tile::kThreads, kBlocks)
    attention_kernel(AttentionShape shape, const typename Tile::T* qkv, typename Tile::T* o,
                     float* lse) {
  using T = typename Tile::T;
  constexpr int kHead = Tile::kHead, kRows = Tile::kRows, kCols = Tile::kCols;
  SPILLWAY_DYNAMIC_SHARED(T, shared);
  constexpr int kStages = kRows * kHead, kStage = 2 * kCols * kHead;
  constexpr int kScratch = kStages + 2 * kStage;

  const int tiles = (shape.context + kRows - 1) / kRows;
  const AttentionPlace place(blockIdx.x, tiles, shape.heads);
  const int first = (tiles - 1 - place.tile) * kRows;
  const int limit = min(first + kRows, shape.context);
  const int group = shape.heads / shape.kv_heads;
  const T* rows = qkv + int64_t{place.sequence} * shape.context * shape.pitch;
  const T* q = rows + int64_t{place.head} * kHead;
  const T* k = rows + (int64_t{shape.heads} + place.head / group) * kHead;
  const T* v = k + int64_t{shape.kv_heads} * kHead;

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
  load(0, 0);

  const float to_log2 = shape.scale * kLog2E;
  const int warp_first = first + Tile::warp_row();
  typename Tile::Sums sums;
  float top[Tile::kSlots], sum[Tile::kSlots];
#pragma unroll
  for (int i = 0; i < Tile::kSlots; ++i) top[i] = -INFINITY, sum[i] = 0;

  for (int key = 0, stage = 0; key < limit; key += kCols, stage ^= 1) {
    cp_async_wait<0>();
    __syncthreads();  // this stage has arrived, and every warp is done with the other
    if (key + kCols < limit) load(stage ^ 1, key + kCols);
    if (key >= warp_first + Tile::kWarpRows) continue;

    const int k_tile = kStages + stage * kStage;
    typename Tile::Scores p;
    Tile::multiply_transposed(p, shared, 0, k_tile);
    if (key + kCols - 1 > warp_first) {
#pragma unroll
      for (int i = 0; i < Tile::kSlots; ++i)
#pragma unroll
        for (int j = 0; j < Tile::kSlotCols; ++j)
          if (key + Tile::col(j) > first + Tile::row(i)) Tile::at(p, i, j) = -INFINITY;
    }
    float now[Tile::kSlots];
    bool higher = false;
#pragma unroll
    for (int i = 0; i < Tile::kSlots; ++i) {
      now[i] = top[i];
#pragma unroll
      for (int j = 0; j < Tile::kSlotCols; ++j) now[i] = fmaxf(now[i], Tile::at(p, i, j));
      now[i] = Tile::row_max(now[i]);
      higher |= now[i] != top[i];
    }
    // Past the first tiles maxima seldom grow, and a factor of 1 changes nothing.
    if (__ballot_sync(0xffffffffu, higher) != 0) {
#pragma unroll
      for (int i = 0; i < Tile::kSlots; ++i) {
        const float correction = fast_exp2((top[i] - now[i]) * to_log2);
        top[i] = now[i];
        sum[i] *= correction;
        Tile::scale(sums, i, correction);
      }
    }
#pragma unroll
    for (int i = 0; i < Tile::kSlots; ++i) {
      const float shift = top[i] * to_log2;
#pragma unroll
      for (int j = 0; j < Tile::kSlotCols; ++j) {
        float& x = Tile::at(p, i, j);
        x = fast_exp2(fmaf(x, to_log2, -shift));
        sum[i] += x;
      }
    }
    Tile::multiply(sums, p, shared, k_tile + kStage / 2, kScratch);
  }

  float* lse_rows = lse + (int64_t{place.sequence} * shape.heads + place.head) * shape.context;
#pragma unroll
  for (int i = 0; i < Tile::kSlots; ++i) {
    const float total = Tile::row_sum(sum[i]);
    const int row = first + Tile::row(i);
    if (Tile::leads_row() && row < shape.context)
      lse_rows[row] = top[i] * shape.scale + logf(total);
    Tile::scale(sums, i, 1.0f / total);
  }
  T* target =
      o + int64_t{place.sequence} * shape.context * shape.o_pitch + int64_t{place.head} * kHead;
  Tile::store(sums, shared, target, shape.o_pitch, first, shape.context, shape.aligned);
}

template <class Tile, int kBlocks>
void enqueue(const AttentionShape& shape, const KernelArgs& args, const LaunchContext& context) {
  using T = typename Tile::T;
  const int64_t blocks =
      ceil_div(shape.context, Tile::kRows) * int64_t{shape.sequences} * shape.heads;
  launch(attention_kernel<Tile, kBlocks>, dim3(static_cast<unsigned>(blocks)), dim3(Tile::kThreads),
         kForwardElements<Tile> * sizeof(T), context.stream, shape, args.in[0].as<T>(),
         args.out[0].as<T>(), args.out[1].as<float>());
}

}  // namespace

void attention(const KernelArgs& args, const LaunchContext& context) {
  const AttentionShape shape = attention_shape(args);
  if (args.in[0].dtype == Dtype::bf16) {
    if (args.attrs->head_dim == 64)
      enqueue<MmaTile<64, 2, 32>, 3>(shape, args, context);
    else
      enqueue<MmaTile<128, 2, 32>, 2>(shape, args, context);
  } else {
    if (args.attrs->head_dim == 64)
      enqueue<SimtTile<64>, 3>(shape, args, context);
    else
      enqueue<SimtTile<128>, 2>(shape, args, context);
  }
}

}  // namespace spillway::cuda
