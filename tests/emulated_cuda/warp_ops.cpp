#include "warp_ops.h"

#include <bit>
#include <cstring>

#include "report.h"
#include "shadow.h"

namespace spillway::emulated {
namespace {

constexpr int kM = 16, kN = 8, kK = 16;

float from_bf16(uint32_t bits) { return std::bit_cast<float>(bits << 16); }
// Which half of a register: the lower holds the element with the lower index.
uint32_t half(uint32_t pair, int which) { return pair >> (16 * which) & 0xFFFF; }

void load(Lanes& lanes, bool transposed) {
  uint16_t rows[4][8][8];
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    const void* row = lanes.in_of<const void*>(lane);
    if (reinterpret_cast<uintptr_t>(row) % 16) {
      report("misaligned", lanes.code, "ldmatrix of lane {} from {} at {}; {}", lane, row,
             line_of(lanes.code), where_running());
      abandon_block();
    }
    shadow::read_for_lane(lane, row, 16, lanes.code);
    std::memcpy(rows[lane / 8][lane % 8], row, 16);
  }
  for (unsigned lane = 0; lane < kWarp; ++lane)
    for (int matrix = 0; matrix < 4; ++matrix) {
      const unsigned row = lane / 4, column = lane % 4 * 2;
      const uint16_t(&m)[8][8] = rows[matrix];
      const uint32_t low = transposed ? m[column][row] : m[row][column];
      const uint32_t high = transposed ? m[column + 1][row] : m[row][column + 1];
      lanes.out_of<uint32_t[4]>(lane)[matrix] = low | high << 16;
    }
}

}  // namespace

void multiply_matrices(Lanes& lanes) {
  float a[kM][kK], b[kK][kN], d[kM][kN];
  for (int lane = 0; lane < static_cast<int>(kWarp); ++lane) {
    const MatrixOperands& in = lanes.in_of<MatrixOperands>(lane);
    const int group = lane / 4, place = lane % 4;
    for (int r = 0; r < 4; ++r)
      for (int h = 0; h < 2; ++h)
        a[group + r % 2 * 8][place * 2 + h + r / 2 * 8] = from_bf16(half(in.a[r], h));
    for (int r = 0; r < 2; ++r)
      for (int h = 0; h < 2; ++h) b[place * 2 + h + r * 8][group] = from_bf16(half(in.b[r], h));
    for (int r = 0; r < 4; ++r) d[group + r / 2 * 8][place * 2 + r % 2] = in.d[r];
  }
  for (int m = 0; m < kM; ++m)
    for (int k = 0; k < kK; ++k)
      for (int n = 0; n < kN; ++n) d[m][n] += a[m][k] * b[k][n];
  for (int lane = 0; lane < static_cast<int>(kWarp); ++lane)
    for (int r = 0; r < 4; ++r)
      lanes.out_of<float[4]>(lane)[r] = d[lane / 4 + r / 2 * 8][lane % 4 * 2 + r % 2];
}

void load_matrices(Lanes& lanes) { load(lanes, false); }
void load_matrices_transposed(Lanes& lanes) { load(lanes, true); }

void ballot(Lanes& lanes) {
  uint32_t set = 0;
  for (unsigned lane = 0; lane < kWarp; ++lane)
    if (lanes.mask >> lane & 1) set |= lanes.in_of<uint32_t>(lane) << lane;
  for (unsigned lane = 0; lane < kWarp; ++lane) lanes.out_of<uint32_t>(lane) = set;
}

void shuffle(Lanes& lanes) {
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if (!(lanes.mask >> lane & 1)) continue;
    const Shuffled& in = lanes.in_of<Shuffled>(lane);
    if (in.from >= kWarp || !(lanes.mask >> in.from & 1)) {
      report("warp collective", lanes.code,
             "lane {} reads lane {}, which mask {:08x} leaves out, at {}; {}", lane, in.from,
             lanes.mask, source_of(lanes.code), where_running());
      abandon_block();
    }
    std::memcpy(lanes.out[lane], lanes.in_of<Shuffled>(in.from).value, in.bytes);
  }
}

}  // namespace spillway::emulated
