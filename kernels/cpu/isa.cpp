#include "kernels/cpu/isa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace spillway::cpu {
namespace {

constexpr Isa kIsas[] = {Isa::avx2, Isa::avx512, Isa::avx512bf16, Isa::amx};

// Linux hands out the tile registers' state only to processes that ask for it.
bool tiles_permitted() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

Isa choose() {
  Isa best = Isa::avx2;
  if (!supported(best))
    bad_input("this processor lacks AVX2 and FMA, which the CPU kernels need at least");
  for (Isa i : kIsas)
    if (supported(i)) best = i;
  const char* wanted = std::getenv("SPILLWAY_ISA");
  if (!wanted || !*wanted) return best;
  for (Isa i : kIsas) {
    if (std::strcmp(wanted, name_of(i)) != 0) continue;
    if (!supported(i))
      bad_input("SPILLWAY_ISA={}: this machine does not have it; its best is {}", wanted,
                name_of(best));
    return i;
  }
  bad_input("SPILLWAY_ISA={}: unknown; expected avx2, avx512, avx512bf16 or amx", wanted);
}

}  // namespace

const char* name_of(Isa i) {
  switch (i) {
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::avx512bf16:
      return "avx512bf16";
    case Isa::amx:
      return "amx";
  }
  return "?";
}

// The builtins look at the registers that the operating system saves, too.
bool supported(Isa i) {
  switch (i) {
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c");
    case Isa::avx512:
      return supported(Isa::avx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    case Isa::avx512bf16:
      return supported(Isa::avx512) && __builtin_cpu_supports("avx512bf16");
    case Isa::amx: {
      static const bool amx = supported(Isa::avx512bf16) && __builtin_cpu_supports("amx-tile") &&
                              __builtin_cpu_supports("amx-bf16") && tiles_permitted();
      return amx;
    }
  }
  return false;
}

Isa isa() {
  static const Isa chosen = choose();
  return chosen;
}

const char* isa_name() { return name_of(isa()); }

}  // namespace spillway::cpu
