#include "kernels/cpu/table.h"

namespace spillway::cpu {

Kernel kernel(OpKind kind) {
  static constexpr Kernel kTable[] = {
#define OP(name) name,
#include "graph/op_list.h"
  };
  return kTable[static_cast<int>(kind)];
}

}  // namespace spillway::cpu
