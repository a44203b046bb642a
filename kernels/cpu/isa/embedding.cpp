// embedding and its gradient: a sum over segments of equal tokens, in row order.
#include "kernels/cpu/isa/kernel.h"

namespace spillway::cpu::SPILLWAY_ISA {
namespace {

template <class T>
void embedding_of(const KernelArgs& args) {
  const Attrs& attrs = *args.attrs;
  const int64_t width = row_length(args.in[0]), rows = elements(args.in[1]);
  const T* table = data<T>(args.in[0]);
  const int32_t* tokens = data<int32_t>(args.in[1]);
  const T* positions = attrs.bias ? data<T>(args.in[2]) : nullptr;
  const int64_t last = attrs.bias ? args.in[2].dims.d[0] - 1 : 0;
  const int64_t start = attrs.decode ? data<StepScalars>(args.in[args.in_count - 1])->position : 0;
  const int64_t period = attrs.decode ? larger(rows, 1) : attrs.context;
  T* x = data<T>(args.out[0]);
  each_row(rows, width, [=](int64_t row) {
    const T* from = table + tokens[row] * width;
    T* to = x + row * width;
    if (!positions) {
      strips(width, [&](int64_t i, auto live)
                        SPILLWAY_FLAT { store(to + i, load(from + i, live), live); });
      return;
    }
    // Rows past the live ones of a decode call may lie past the last position.
    const T* at = positions + smaller(start + row % period, last) * width;
    strips(width, [&](int64_t i, auto live) SPILLWAY_FLAT {
      store(to + i, load(from + i, live) + load(at + i, live), live);
    });
  });
}

// The first k with tokens[order[k]] >= token.
int64_t lower_bound(const int32_t* order, const int32_t* tokens, int64_t count, int64_t token) {
  int64_t begin = 0;
  while (count > 0) {
    const int64_t half = count / 2;
    if (tokens[order[begin + half]] < token) {
      begin += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return begin;
}

constexpr int64_t kTokens = 32, kColumns = 256;  // of one quantum

template <class T>
void table_grad(const KernelArgs& args) {
  const int64_t width = row_length(args.out[0]), vocab = args.out[0].dims.d[0];
  const int64_t rows = elements(args.in[1]);
  const T* dx = data<T>(args.in[0]);
  const int32_t* order = data<int32_t>(args.in[1]);
  const int32_t* tokens = data<int32_t>(args.in[2]);
  float* dtable = data<float>(args.out[0]);
  const bool accumulate = args.accumulate;
  const int64_t pieces = quotient_up(width, kColumns);
  auto quantum_of = [=](int64_t quantum) {
    const int64_t token = quantum / pieces * kTokens, column = quantum % pieces * kColumns;
    const int64_t token_end = smaller(vocab, token + kTokens);
    const int64_t columns = smaller(kColumns, width - column);
    int64_t k = lower_bound(order, tokens, rows, token);
    for (int64_t t = token; t < token_end; ++t) {
      int64_t end = k;
      while (end < rows && tokens[order[end]] == t) ++end;
      if (end == k && accumulate) continue;
      float* to = dtable + t * width + column;
      strips(columns, [&](int64_t i, auto live) SPILLWAY_FLAT {
        F total = splat(0.0f);
        for (int64_t s = k; s < end; ++s)
          total = total + load(dx + order[s] * width + column + i, live);
        if (accumulate) total = load(to + i, live) + total;
        store(to + i, total, live);
      });
      k = end;
    }
  };
  for_quanta(quotient_up(vocab, kTokens) * pieces, quantum_of, Schedule::dynamic);
}

template <class T>
void positions_grad(const KernelArgs& args) {
  const int64_t width = row_length(args.out[1]), positions = args.out[1].dims.d[0];
  const int64_t rows = elements(args.in[1]), context = args.attrs->context;
  const T* dx = data<T>(args.in[0]);
  float* out = data<float>(args.out[1]);
  const bool accumulate = args.accumulate;
  each_row(positions, width, [=](int64_t position) {
    float* to = out + position * width;
    strips(width, [&](int64_t i, auto live) SPILLWAY_FLAT {
      F total = splat(0.0f);
      if (position < context)
        for (int64_t row = position; row < rows; row += context)
          total = total + load(dx + row * width + i, live);
      if (accumulate) total = load(to + i, live) + total;
      store(to + i, total, live);
    });
  });
}

template <class T>
void embedding_grad_of(const KernelArgs& args) {
  table_grad<T>(args);
  if (args.attrs->bias) positions_grad<T>(args);
}

}  // namespace

void embedding(const KernelArgs& args) {
  args.in[0].dtype == Dtype::bf16 ? embedding_of<Bf16>(args) : embedding_of<float>(args);
}
void embedding_grad(const KernelArgs& args) {
  args.in[0].dtype == Dtype::bf16 ? embedding_grad_of<Bf16>(args) : embedding_grad_of<float>(args);
}

}  // namespace spillway::cpu::SPILLWAY_ISA
