// embedding and embedding_grad. Bound by bytes. Forward: 4 an element in bf16 (6 with positions);
// designed for 85 % of the bandwidth: one pack a thread, 2048 threads a multiprocessor, 32 KB in
// flight. Backward: overwriting writes 4 bytes for every element of the table (2 GB for 128,000
// rows of 4096, at the full bandwidth 0.6 ms), next to which the rows of dx are little;
// accumulating touches only the rows of the tokens that occur, 2 bytes of dx and 8 of the table.
// Rows of one token are added in row order by one thread a column, four under way; a token that
// fills a tenth of 8192 rows waits for some 200 loads one after the other, 120 µs, beside the
// others.
#include <device_port.cuh>

#include "kernels/cuda/sampling.h"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vector_access.cuh"

namespace spillway::cuda {
namespace {

constexpr int kThreads = 128;

// Where a thread works in blocks (x, y): row x, the y-th run of kThreads packs.
template <class T>
__device__ __forceinline__ int64_t my_column() {
  return (int64_t{blockIdx.y} * kThreads + static_cast<int>(threadIdx.x)) * kPack<T>;
}
template <class T>
dim3 rows_and_columns(int64_t rows, int64_t width) {
  dim3 grid = blocks_for(rows, 1);
  grid.y = blocks_for(ceil_div(width, kPack<T>), kThreads).x;
  return grid;
}

template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads)
    embedding_kernel(const T* table, const int32_t* tokens, const T* positions, int64_t context,
                     int64_t width, T* x) {
  const int64_t row = blockIdx.x, at = my_column<T>();
  const int64_t live = live_in_row<T, kVector>(width, at);
  if (at >= width) return;
  Pack<T> p = load_pack<kVector>(table + tokens[row] * width + at, live);
  if (positions) {
    Floats<kPack<T>> sum = widen(p);
    const Floats<kPack<T>> position =
        widen(load_pack<kVector>(positions + row % context * width + at, live));
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) sum.v[i] += position.v[i];
    p = narrowed<T>(sum);
  }
  store_pack<kVector>(x + row * width + at, p, live);
}

template <class T>
void forward(const KernelArgs& args, cudaStream_t stream) {
  const int64_t width = args.in[0].dims.last(), rows = args.in[1].dims.count();
  const T* table = args.in[0].as<T>();
  const T* positions = args.attrs->bias ? args.in[2].as<T>() : nullptr;
  T* x = args.out[0].as<T>();
  if (rows == 0) return;
  const bool vector = width % kPack<T> == 0 && on_16_bytes({table, positions, x});
  launch(vector ? embedding_kernel<T, true> : embedding_kernel<T, false>,
         rows_and_columns<T>(rows, width), dim3(kThreads), 0, stream, table,
         args.in[1].as<int32_t>(), positions, args.attrs->context, width, x);
}

template <bool kVector>
__global__ void __launch_bounds__(kThreads) zero_kernel(float* to, int64_t count) {
  const int64_t at =
      (int64_t{blockIdx.x} * kThreads + static_cast<int>(threadIdx.x)) * kPack<float>;
  if (at < count) store_floats<kVector, 4>(to + at, zeros<float>(), count - at);
}

template <class T>
struct EmbeddingGradArgs {
  const T* dx;
  const int32_t* order;
  const int32_t* tokens;
  float* out;
  int64_t rows, width;
  bool accumulate;
};

// out[i] (+)= Σ of rows first, first + step, … of dx, `row` giving the number of each.
template <bool kVector, class T, class Row>
__device__ __forceinline__ void add_rows(const EmbeddingGradArgs<T>& a, int64_t first, int64_t end,
                                         int64_t step, int64_t to, int64_t at, const Row& row) {
  constexpr int kCount = kPack<T>;
  const int64_t live = live_in_row<T, kVector>(a.width, at);
  Floats<kCount> sum = zeros<T>();
#pragma unroll 4
  for (int64_t k = first; k < end; k += step) {
    const Floats<kCount> d = widen(load_pack<kVector>(a.dx + row(k) * a.width + at, live));
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum.v[i] += d.v[i];
  }
  float* out = a.out + to * a.width + at;
  if (a.accumulate) {
    const Floats<kCount> before = load_floats<kVector, kCount>(out, live);
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum.v[i] = before.v[i] + sum.v[i];
  }
  store_floats<kVector, kCount>(out, sum, live);
}

// The first k > first whose row has another token than the row at `first`; the rows are sorted by
// token. Doubling steps, then bisection.
__device__ __forceinline__ int64_t segment_end(const int32_t* order, const int32_t* tokens,
                                               int64_t first, int64_t rows) {
  const int32_t token = tokens[order[first]];
  int64_t inside = first, step = 1;
  while (inside + step < rows && tokens[order[inside + step]] == token) inside += step, step *= 2;
  int64_t outside = inside + step < rows ? inside + step : rows;
  while (outside - inside > 1) {
    const int64_t middle = inside + (outside - inside) / 2;
    (tokens[order[middle]] == token ? inside : outside) = middle;
  }
  return outside;
}

// Block x has the segment that begins at place x of the sorted order, if one does.
template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) table_grad_kernel(EmbeddingGradArgs<T> a) {
  const int64_t first = blockIdx.x, at = my_column<T>();
  const int32_t token = a.tokens[a.order[first]];
  if (first > 0 && a.tokens[a.order[first - 1]] == token) return;
  if (at >= a.width) return;
  const int64_t end = segment_end(a.order, a.tokens, first, a.rows);
  add_rows<kVector>(a, first, end, 1, token, at, [&](int64_t k) { return int64_t{a.order[k]}; });
}

// Block x has position x; positions beyond the context have no rows.
template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads)
    positions_grad_kernel(EmbeddingGradArgs<T> a, int64_t context) {
  const int64_t position = blockIdx.x, at = my_column<T>();
  if (at >= a.width) return;
  const int64_t end = position < context ? a.rows : 0;
  add_rows<kVector>(a, position, end, context, position, at, [](int64_t k) { return k; });
}

template <class T>
void backward(const KernelArgs& args, cudaStream_t stream) {
  EmbeddingGradArgs<T> a{};
  a.dx = args.in[0].as<T>();
  a.order = args.in[1].as<int32_t>();
  a.tokens = args.in[2].as<int32_t>();
  a.out = args.out[0].as<float>();
  a.rows = args.in[1].dims.count();
  a.width = args.out[0].dims.last();
  a.accumulate = args.accumulate;
  const bool whole = a.width % kPack<T> == 0 && on_16_bytes({a.dx});
  const int64_t count = args.out[0].dims.count();
  if (!a.accumulate && count > 0)
    launch(on_16_bytes({a.out}) ? zero_kernel<true> : zero_kernel<false>,
           blocks_for(ceil_div(count, kPack<float>), kThreads), dim3(kThreads), 0, stream, a.out,
           count);
  if (a.rows > 0)
    launch(whole && on_16_bytes({a.out}) ? table_grad_kernel<T, true> : table_grad_kernel<T, false>,
           rows_and_columns<T>(a.rows, a.width), dim3(kThreads), 0, stream, a);
  if (!args.attrs->bias) return;
  a.out = args.out[1].as<float>();
  launch(whole && on_16_bytes({a.out}) ? positions_grad_kernel<T, true>
                                       : positions_grad_kernel<T, false>,
         rows_and_columns<T>(args.out[1].dims[0], a.width), dim3(kThreads), 0, stream, a,
         args.attrs->context);
}

}  // namespace

void embedding(const KernelArgs& args, const LaunchContext& context) {
  refuse_decoding(*args.attrs);
  args.in[0].dtype == Dtype::bf16 ? forward<Bf16>(args, context.stream)
                                  : forward<float>(args, context.stream);
}
void embedding_grad(const KernelArgs& args, const LaunchContext& context) {
  args.in[0].dtype == Dtype::bf16 ? backward<Bf16>(args, context.stream)
                                  : backward<float>(args, context.stream);
}

}  // namespace spillway::cuda
