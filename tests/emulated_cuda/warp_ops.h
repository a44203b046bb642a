// What warp collectives do with the operands of the lanes (block.h).
#pragma once

#include <cstdint>

#include "tests/emulated_cuda/block.h"

namespace spillway::emulated {

struct MatrixOperands {
  uint32_t a[4], b[2];
  float d[4];
};
// mma.sync.m16n8k16, row by column, bf16 operands: d += a·b in f32, k ascending.
void multiply_matrices(Lanes& lanes);
// ldmatrix.x4: lane l gives the address of row l % 8 of matrix l / 8.
void load_matrices(Lanes& lanes);
void load_matrices_transposed(Lanes& lanes);

struct Shuffled {
  uint32_t from;  // lane
  uint32_t bytes;
  alignas(8) unsigned char value[16];
};
// Every lane gets the value of another. One that reads a lane outside the mask is reported and ends
// the block.
void shuffle(Lanes& lanes);

// in: uint32_t 0 or 1; out: uint32_t, a bit a lane.
void ballot(Lanes& lanes);

}  // namespace spillway::emulated
