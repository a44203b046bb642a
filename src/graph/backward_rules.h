// The backward rule of every op that has one; OpDef::backward says what each does.
#pragma once

#include <vector>

#include "graph/builder.h"

namespace spillway {

#define SPILLWAY_BACKWARD(op)                                                                    \
  void op##_backward(GraphBuilder& builder, const Node& node, const std::vector<TensorId>& dout, \
                     std::vector<TensorId>& din)
SPILLWAY_BACKWARD(embedding);
SPILLWAY_BACKWARD(rmsnorm);
SPILLWAY_BACKWARD(layernorm);
SPILLWAY_BACKWARD(matmul);
SPILLWAY_BACKWARD(rope);
SPILLWAY_BACKWARD(attention);
SPILLWAY_BACKWARD(gelu);
SPILLWAY_BACKWARD(swiglu);
SPILLWAY_BACKWARD(head_loss);
#undef SPILLWAY_BACKWARD

}  // namespace spillway
