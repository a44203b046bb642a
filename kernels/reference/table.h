// Every op in double precision, written as plainly as its definition in graph/ops/<op>.h: the truth
// that other backends are measured against. All float operands are f64, whatever the op's own
// types; indices stay i32 and the step scalars their bytes. One thread, no workspace.
#pragma once

#include "graph/kernel_abi.h"

namespace spillway::reference {

#define OP(name) void name(const KernelArgs& args);
#include "graph/op_list.h"

Kernel kernel(OpKind kind);

}  // namespace spillway::reference
