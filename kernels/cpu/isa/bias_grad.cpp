// bias_grad: column sums, block of rows by block of rows.
#include "kernels/cpu/isa/kernel.h"

namespace spillway::cpu::SPILLWAY_ISA {
namespace {

template <class T>
void column_sums(const T* dy, int64_t rows, int64_t width, float* partial, bool accumulate,
                 float* out) {
  const RowBlocks blocks = row_blocks(rows);
  for_quanta(blocks.count, [=](int64_t b) {
    float* sums = partial + b * width;
    const int64_t end = smaller(rows, (b + 1) * blocks.step);
    strips(width, [=](int64_t i, auto live) SPILLWAY_FLAT {
      F total = splat(0.0f);
      for (int64_t r = b * blocks.step; r < end; ++r)
        total = total + load(dy + r * width + i, live);
      store(sums + i, total, live);
    });
  });
  add_blocks(partial, blocks.count, width, width, accumulate, out);
}

}  // namespace

void bias_grad(const KernelArgs& args) {
  const TensorArg& dy = args.in[0];
  auto* partial = static_cast<float*>(args.workspace);
  float* out = data<float>(args.out[0]);
  if (dy.dtype == Dtype::f32)
    column_sums(data<float>(dy), rows_of(dy), row_length(dy), partial, args.accumulate, out);
  else
    column_sums(data<Bf16>(dy), rows_of(dy), row_length(dy), partial, args.accumulate, out);
}

}  // namespace spillway::cpu::SPILLWAY_ISA
