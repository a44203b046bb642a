// add, rank_sum, norm_partials: what happens to gradients between backward and update.
#include "kernels/cpu/isa/kernel.h"

namespace spillway::cpu::SPILLWAY_ISA {

void add(const KernelArgs& args) {
  const float* a = data<float>(args.in[0]);
  const float* b = data<float>(args.in[1]);
  float* out = data<float>(args.out[0]);
  elementwise(elements(args.in[0]), [=](int64_t i, auto live) SPILLWAY_FLAT {
    store(out + i, load(a + i, live) + load(b + i, live), live);
  });
}

void rank_sum(const KernelArgs& args) {
  const int64_t ranks = args.attrs->ranks, rank = args.attrs->rank;
  const int64_t inner = larger(1, args.attrs->inner);
  const float* own = data<float>(args.in[0]);
  const float* staging = ranks > 1 ? data<float>(args.in[1]) : nullptr;
  const int64_t stride = ranks > 1 ? elements(args.in[1]) / (ranks - 1) : 0;
  float* out = data<float>(args.out[0]);
  const bool accumulate = args.accumulate;
  elementwise(elements(args.in[0]), [=](int64_t i, auto live) SPILLWAY_FLAT {
    auto piece = [=](int64_t p) SPILLWAY_FLAT {
      const float* from = p == rank ? own : staging + (p < rank ? p : p - 1) * stride;
      return load(from + i, live);
    };
    F total = splat(0.0f);
    for (int64_t first = 0; first < ranks; first += inner) {
      const int64_t end = smaller(ranks, first + inner);
      F group = piece(first);
      for (int64_t p = first + 1; p < end; ++p) group = group + piece(p);
      total = first == 0 ? group : total + group;
    }
    if (accumulate) total = load(out + i, live) + total;
    store(out + i, total, live);
  });
}

// One block's squares are summed in f64: eight partial vectors, added in one order.
void norm_partials(const KernelArgs& args) {
  const int64_t count = elements(args.in[0]), block = larger(1, args.attrs->block);
  const float* grad = data<float>(args.in[0]);
  double* partials = data<double>(args.out[0]);
  for_quanta(quotient_up(count, block), [=](int64_t b) {
    const float* from = grad + b * block;
    D part[8];
    for (D& p : part) p = splat_double(0.0);
    strips4(smaller(block, count - b * block), [&](int64_t i, auto live, int p) SPILLWAY_FLAT {
      const F g = load(from + i, live);
      const D low = low_half(g), high = high_half(g);
      part[2 * p] = fma(low, low, part[2 * p]);
      part[2 * p + 1] = fma(high, high, part[2 * p + 1]);
    });
    partials[b] = sum(((part[0] + part[1]) + (part[2] + part[3])) +
                      ((part[4] + part[5]) + (part[6] + part[7])));
  });
}

}  // namespace spillway::cpu::SPILLWAY_ISA
