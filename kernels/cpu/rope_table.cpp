#include "kernels/cpu/rope_table.h"

#include <cmath>

#include "base/error.h"
#include "graph/ops/rope_frequency.h"

namespace spillway::cpu {

void fill_rope_table(const Attrs& attrs, RopeTable& table) {
  if (attrs.head_dim % 2 != 0 || attrs.head_dim > 2 * kMaxRopeHalf)
    bad_input("not supported yet: rotary embeddings on a head size of {}; even sizes up to {} are",
              attrs.head_dim, 2 * kMaxRopeHalf);
  table.half = attrs.head_dim / 2;
  for (int64_t i = 0; i < table.half; ++i) {
    const double f = rope_frequency(attrs, static_cast<int>(i));
    table.frequency[i] = f;
    table.step_cos[i] = std::cos(f);
    table.step_sin[i] = std::sin(f);
  }
}

void rope_angles(const RopeTable& table, int64_t position, double* cosines, double* sines) {
  for (int64_t i = 0; i < table.half; ++i) {
    const double angle = static_cast<double>(position) * table.frequency[i];
    cosines[i] = std::cos(angle);
    sines[i] = std::sin(angle);
  }
}

}  // namespace spillway::cpu
