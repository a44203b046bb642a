#include "kernels/cpu/isa.h"
#include "kernels/cpu/isa/variants.h"
#include "kernels/cpu/table.h"

namespace spillway::cpu {

#define VARIANT(name) \
  void name(const KernelArgs& args) { isa() == Isa::avx2 ? avx2::name(args) : avx512::name(args); }
#include "kernels/cpu/isa/variant_list.h"

}  // namespace spillway::cpu
