#include "base/error.h"
#include "graph/op.h"

namespace spillway {

#define OP(name) extern const OpDef name##_def;
#include "graph/op_list.h"

const OpDef& op_def(OpKind kind) {
  switch (kind) {
#define OP(name)     \
  case OpKind::name: \
    return name##_def;
#include "graph/op_list.h"
    case OpKind::count_:
      break;
  }
  internal_error("no op {}", static_cast<int>(kind));
}

}  // namespace spillway
