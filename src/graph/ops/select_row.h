// select_row: the last live row of a decoding call.
//   in   x[n,h], scalars   out  y[1,h] = x[scalars.count − 1]
//   1 ≤ count ≤ n is the caller's duty. No attributes.
#pragma once

#include "graph/op.h"

namespace spillway {

extern const OpDef select_row_def;

}  // namespace spillway
