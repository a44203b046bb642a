// Element types and shapes. Free of any backend; kernels include this header too, so it holds no
// std templates beyond <cstdint>.
#pragma once

#include <cstdint>

namespace spillway {

enum class Dtype : uint8_t { f32, bf16, f64, i32, u8 };

constexpr int64_t size_of(Dtype t) {
  switch (t) {
    case Dtype::f32:
    case Dtype::i32:
      return 4;
    case Dtype::bf16:
      return 2;
    case Dtype::f64:
      return 8;
    case Dtype::u8:
      return 1;
  }
  return 0;
}

constexpr const char* name_of(Dtype t) {
  switch (t) {
    case Dtype::f32:
      return "f32";
    case Dtype::bf16:
      return "bf16";
    case Dtype::f64:
      return "f64";
    case Dtype::i32:
      return "i32";
    case Dtype::u8:
      return "u8";
  }
  return "?";
}

// A dense row-major shape of up to four dimensions; rank 0 is a scalar of one element.
struct Dims {
  int32_t rank = 0;
  int64_t d[4] = {1, 1, 1, 1};

  constexpr Dims() = default;
  constexpr explicit Dims(int64_t a) : rank(1), d{a, 1, 1, 1} {}
  constexpr Dims(int64_t a, int64_t b) : rank(2), d{a, b, 1, 1} {}
  constexpr Dims(int64_t a, int64_t b, int64_t c) : rank(3), d{a, b, c, 1} {}
  constexpr int64_t operator[](int i) const { return d[i]; }
  constexpr int64_t count() const { return d[0] * d[1] * d[2] * d[3]; }
  constexpr int64_t last() const { return rank == 0 ? 1 : d[rank - 1]; }
  constexpr int64_t rows() const { return last() == 0 ? 0 : count() / last(); }
  friend constexpr bool operator==(const Dims& a, const Dims& b) {
    return a.rank == b.rank && a.d[0] == b.d[0] && a.d[1] == b.d[1] && a.d[2] == b.d[2] &&
           a.d[3] == b.d[3];
  }
};

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace spillway
