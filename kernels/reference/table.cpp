#include "kernels/reference/table.h"

#include "base/error.h"

namespace spillway::reference {

Kernel kernel(OpKind kind) {
  switch (kind) {
#define OP(name)     \
  case OpKind::name: \
    return name;
#include "graph/op_list.h"
    case OpKind::count_:
      break;
  }
  internal_error("no op {}", static_cast<int>(kind));
}

}  // namespace spillway::reference
