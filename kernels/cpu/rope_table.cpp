#include "kernels/cpu/rope_table.h"

#include <cmath>
#include <numbers>

#include "base/error.h"

namespace spillway::cpu {

void fill_rope_table(const Attrs& attrs, RopeTable& table) {
  if (attrs.head_dim % 2 != 0 || attrs.head_dim > 2 * kMaxRopeHalf)
    bad_input("not supported yet: rotary embeddings on a head size of {}; even sizes up to {} are",
              attrs.head_dim, 2 * kMaxRopeHalf);
  table.half = attrs.head_dim / 2;
  for (int64_t i = 0; i < table.half; ++i) {
    double f = std::pow(attrs.rope_theta, -2.0 * static_cast<double>(i) / attrs.head_dim);
    if (attrs.llama3_rope) {
      // Turns in the original context: above rope_high unscaled, below rope_low slowed by the
      // factor, between them a linear mix.
      const double turns = static_cast<double>(attrs.rope_original) * f / (2 * std::numbers::pi);
      double mix = (turns - attrs.rope_low) / (attrs.rope_high - attrs.rope_low);
      mix = std::fmin(1.0, std::fmax(0.0, mix));
      f = (1 - mix) * f / attrs.rope_factor + mix * f;
    }
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
