// What the kernels of this folder share beside vec.h: operands, quanta, row blocks.
#pragma once

#include "graph/kernel_abi.h"
#include "kernels/cpu/isa/vec.h"
#include "kernels/cpu/parallel.h"

namespace spillway::cpu::SPILLWAY_ISA {
namespace {

template <class T>
SPILLWAY_INLINE T* data(const TensorArg& t) {
  return static_cast<T*>(t.data);
}
SPILLWAY_INLINE int64_t elements(const TensorArg& t) {
  return t.dims.d[0] * t.dims.d[1] * t.dims.d[2] * t.dims.d[3];
}
SPILLWAY_INLINE int64_t row_length(const TensorArg& t) {
  return t.dims.rank == 0 ? 1 : t.dims.d[t.dims.rank - 1];
}
SPILLWAY_INLINE int64_t rows_of(const TensorArg& t) {
  const int64_t width = row_length(t);
  return width == 0 ? 0 : elements(t) / width;
}
SPILLWAY_INLINE int64_t quotient_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
SPILLWAY_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
SPILLWAY_INLINE int64_t larger(int64_t a, int64_t b) { return a < b ? b : a; }

// The value that a T holds after x was stored in it.
template <class T>
SPILLWAY_INLINE F rounded(F x);
template <>
SPILLWAY_INLINE F rounded<float>(F x) {
  return x;
}
template <>
SPILLWAY_INLINE F rounded<Bf16>(F x) {
  return widen(narrow(x));
}

constexpr int64_t kQuantum =
    16384;  // elements a quantum: a fraction of a core's second-level cache

// body(i, live) for the elements of an array of n, spread over threads.
template <class Body>
SPILLWAY_INLINE void elementwise(int64_t n, const Body& body) {
  for_quanta(quotient_up(n, kQuantum), [&](int64_t quantum) {
    const int64_t begin = quantum * kQuantum;
    strips(smaller(kQuantum, n - begin),
           [&](int64_t i, auto live) SPILLWAY_FLAT { body(begin + i, live); });
  });
}

// body(row) for each row, spread over threads; a row is `width` elements.
template <class Body>
SPILLWAY_INLINE void each_row(int64_t rows, int64_t width, const Body& body) {
  const int64_t step = larger(1, kQuantum / larger(width, 1));
  for_quanta(quotient_up(rows, step), [&](int64_t quantum) {
    const int64_t end = smaller(rows, (quantum + 1) * step);
    for (int64_t row = quantum * step; row < end; ++row) body(row);
  });
}

// Sums over rows: at most 64 blocks of rows (a function of `rows` alone), each summed in row order
// into its own part of the workspace, then the blocks in ascending order.
struct RowBlocks {
  int64_t step, count;
};
SPILLWAY_INLINE RowBlocks row_blocks(int64_t rows) {
  const int64_t step = larger(16, quotient_up(rows, 64));
  return {step, quotient_up(rows, step)};
}

// out[i] (+)= Σ_block partial[block · stride + i], i < width.
SPILLWAY_INLINE void add_blocks(const float* partial, int64_t blocks, int64_t stride, int64_t width,
                                bool accumulate, float* out) {
  constexpr int64_t kColumns = 256;
  for_quanta(quotient_up(width, kColumns), [&](int64_t quantum) {
    const int64_t begin = quantum * kColumns;
    strips(smaller(kColumns, width - begin), [&](int64_t i, auto live) SPILLWAY_FLAT {
      F total = splat(0.0f);
      for (int64_t b = 0; b < blocks; ++b)
        total = total + load(partial + b * stride + begin + i, live);
      if (accumulate) total = load(out + begin + i, live) + total;
      store(out + begin + i, total, live);
    });
  });
}

}  // namespace
}  // namespace spillway::cpu::SPILLWAY_ISA
