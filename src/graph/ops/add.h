// add: one gradient accumulator of a parameter added to another (a parameter used twice).
//   in   a f32[n], b f32[n]   out  a = a + b (the same tensor, in place)
// No attributes.
#pragma once

#include "graph/op.h"

namespace spillway {

extern const OpDef add_def;

}  // namespace spillway
