// Declarations of the kernels that exist once per instruction set.
#pragma once

#include "graph/kernel_abi.h"

namespace spillway::cpu::avx2 {
#define VARIANT(name) void name(const KernelArgs& args);
#include "kernels/cpu/isa/variant_list.h"
}  // namespace spillway::cpu::avx2

namespace spillway::cpu::avx512 {
#define VARIANT(name) void name(const KernelArgs& args);
#include "kernels/cpu/isa/variant_list.h"
}  // namespace spillway::cpu::avx512
