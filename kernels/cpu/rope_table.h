// Frequencies of rotary position embeddings in double, for the variants of rope. Included by
// variant files: no std templates.
#pragma once

#include <cstdint>

#include "graph/kernel_abi.h"

namespace spillway::cpu {

constexpr int kMaxRopeHalf = 256;  // head_dim / 2

struct RopeTable {
  int64_t half;
  double frequency[kMaxRopeHalf];                         // radians a token
  double step_cos[kMaxRopeHalf], step_sin[kMaxRopeHalf];  // of one token
};

// By rope_frequency(). Throws Error(bad_input) if head_dim is odd or above 512.
void fill_rope_table(const Attrs& attrs, RopeTable& table);

// cos and sin of position · frequency.
void rope_angles(const RopeTable& table, int64_t position, double* cosines, double* sines);

}  // namespace spillway::cpu
