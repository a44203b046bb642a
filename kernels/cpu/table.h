// The kernels of the CPU backend, one per op of graph/op_list.h (whose headers state operands and
// meaning). A kernel is called on the compute lane's thread, uses that thread's set_threads()
// count, allocates nothing that outlives it, and touches only its operands and workspace.
#pragma once

#include "graph/kernel_abi.h"

namespace spillway::cpu {

#define OP(name) void name(const KernelArgs& args);
#include "graph/op_list.h"

Kernel kernel(OpKind kind);

}  // namespace spillway::cpu
