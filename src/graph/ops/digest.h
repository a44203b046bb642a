// digest: 53 bits that change whenever any bit of a tensor does (but for one chance in 2^52), for
// comparing copies without moving them.
//   in   x f32[n]   out  digest f64[1]
//   digest = the upper 53 bits, as an integer, of Σ mix(bits(x[i]) + i·0x9E3779B97F4A7C15) mod
//   2^64; mix is splitmix64's finaliser. The sum wraps, so its order and cut do not matter.
#pragma once

#include "graph/op.h"

namespace spillway {

extern const OpDef digest_def;

// Parts of the sum that a kernel may keep apart in its workspace, u64 each.
constexpr int kDigestParts = 512;

}  // namespace spillway
