// Which algorithm each GEMM uses: chosen once, kept in the checkpoint's manifest, so that a resumed
// run adds in the same order. Plain data; gemm.h fills and uses it.
//
// JSON: {"library": 130100, "device": "NVIDIA H100 80GB HBM3", "workspace": 33554432, "algorithms":
//   [{"m":…, "n":…, "k":…, "a":"n"|"t", "b":"n"|"t", "in":"bf16", "out":"f32", "bias":false,
//     "alignment":256, "algorithm":"<128 hex digits>"}, …]}
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <string>

#include "base/dtype.h"

namespace spillway::cuda {

// c[m,n] = op(a)·op(b), row-major. A transposed a lies in memory as [k,m], a transposed b as [n,k].
struct GemmKey {
  int64_t m = 0, n = 0, k = 0;
  bool a_transposed = false, b_transposed = false, bias = false;
  Dtype dtype = Dtype::f32, c_dtype = Dtype::f32;  // of a and b; of c
  // Bytes that the addresses of a, b and c are multiples of: 256, 16, or one element of the
  // narrowest. A class and not the addresses themselves, so that moving buffers keeps algorithms.
  int32_t alignment = 256;
  auto operator<=>(const GemmKey&) const = default;
};
std::string describe(const GemmKey& key);  // "c[8,4] f32 = a[8,16]·b[4,16]ᵀ bf16, 256-byte aligned"

using GemmAlgorithm = std::array<uint64_t, 8>;  // the library's own bytes

struct GemmTable {
  // An algorithm means something only to this version of the library on this device, and the
  // workspace limits the choice.
  uint64_t library = 0;
  std::string device;
  int64_t workspace = 0;
  std::map<GemmKey, GemmAlgorithm> algorithms;
};

std::string to_json_text(const GemmTable& table);  // one line
// Throws Error(bad_input) that names `origin` and what is wrong.
GemmTable parse_gemm_table(const std::string& text, const std::string& origin);

// "" if algorithms of `stored` can be used where `own` says what runs, else what differs.
std::string why_not_usable(const GemmTable& stored, const GemmTable& own);

}  // namespace spillway::cuda
