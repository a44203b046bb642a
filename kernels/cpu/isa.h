// Which instruction set the CPU kernels use, decided once per process.
#pragma once

#include <cstdint>

namespace spillway::cpu {

// Ascending: each includes those before it. Elementwise kernels exist for avx2 and avx512; the last
// two matter to matrix kernels alone.
enum class Isa : uint8_t { avx2, avx512, avx512bf16, amx };

// The widest one that processor and operating system offer, or the one that the environment
// variable SPILLWAY_ISA names. For amx the kernel's permission for tile registers has been asked
// for. Throws Error(bad_input) if SPILLWAY_ISA is unknown, or if the machine lacks it or even AVX2.
Isa isa();
const char* isa_name();  // "avx2", "avx512", "avx512bf16" or "amx"
const char* name_of(Isa);
bool supported(Isa);  // by this machine, whatever the environment says

}  // namespace spillway::cpu
