// gelu: y = ½·x·(1 + tanh(sqrt(2/π)·(x + 0.044715·x³))), elementwise.
//   in   x (any shape)   out  y, like x
//
// gelu_grad:  in  x, dy   out  dx = dy·gelu'(x); may take over the bytes of dy
//
// No attributes.
#pragma once

#include "graph/op.h"

namespace spillway {

extern const OpDef gelu_def;
extern const OpDef gelu_grad_def;

}  // namespace spillway
