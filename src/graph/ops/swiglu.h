// swiglu: y = silu(gate)·up with silu(x) = x / (1 + exp(−x)).
//   in   gu[T,2f] (f gate columns, then f up columns)   out  y[T,f]
//
// swiglu_grad:  in  gu[T,2f], dy[T,f]   out  dgu[T,2f]
//
// No attributes.
#pragma once

#include "graph/op.h"

namespace spillway {

extern const OpDef swiglu_def;
extern const OpDef swiglu_grad_def;

}  // namespace spillway
