// Builds graphs: forward by the models, backward by `differentiate`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/op.h"

namespace spillway {

class GraphBuilder {
 public:
  Graph graph;
  Dtype compute = Dtype::f32;  // dtype of activations and matrices
  int32_t layer = 0;           // of what is added next

  TensorId input(const std::string& name, Dtype dtype, Dims dims);
  // A parameter; `matrix`: stored in the compute dtype with an f32 master if that is bf16, and
  // decayed. Otherwise f32, its own master, not decayed. `live`: shape without padding.
  TensorId param(const std::string& name, Dims dims, Dims live, bool matrix, Init init, double std);
  // A forward op: infers output types, names the outputs "<prefix><names[i]>" with place names[i].
  // Returns the outputs. `alias`: output 0 takes over the bytes of input 0.
  std::vector<TensorId> op(OpKind kind, const Attrs& attrs, const std::vector<TensorId>& in,
                           const std::string& prefix, const std::vector<std::string>& names,
                           bool alias = false);

  // For backward rules.
  TensorId temp(const std::string& name, Dtype dtype, Dims dims);  // activation role, this layer
  TensorId accumulator(
      TensorId param);    // a new f32 gradient accumulator of this use, in Param::grads
  Node& emit(Node node);  // sets layer and Pass::backward
  const Tensor& tensor(TensorId id) const { return graph.tensors[id]; }
};

// Adds the backward pass: walks the forward nodes in reverse and asks each op's rule. The loss node
// (head_loss) is replaced by head_loss_grad, which computes loss and gradients in one pass.
Graph differentiate(const Graph& forward);

// The forward node that recomputes `node`'s outputs in the backward pass, given that `available`
// says which tensors exist there: a norm with fused residual add, whose sum exists, becomes a norm
// of that sum alone, with the same bits. Other outputs that exist are written once more. The node
// is named after its main output, without a suffix.
Node recompute_node(const Node& node, const std::function<bool(TensorId)>& available);

}  // namespace spillway
