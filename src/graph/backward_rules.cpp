#include "graph/backward_rules.h"

#include <string>
#include <utility>

#include "base/error.h"

namespace spillway {
namespace {

using Tensors = std::vector<TensorId>;

// "blk.0.qkv.forward" → "blk.0.qkv" + suffix
std::string backward_name(const Node& node, const char* suffix = ".backward") {
  return node.name.substr(0, node.name.rfind('.')) + suffix;
}

Node gradient_node(const Node& node, OpKind op, const char* suffix, const Tensors& in) {
  Node grad;
  grad.name = backward_name(node, suffix);
  grad.op = op;
  grad.attrs = node.attrs;
  for (TensorId id : in) grad.in.push_back({id});
  return grad;
}

Operand accumulating(TensorId id) {
  Operand operand{id};
  operand.accumulate = true;
  return operand;
}

// A new tensor of the type of `like`, called after it.
TensorId gradient_of(GraphBuilder& b, TensorId like) {
  const Tensor t = b.tensor(like);
  return b.temp(t.name + ".grad", t.dtype, t.dims);
}

TensorId incoming(const GraphBuilder& b, const Node& node, TensorId dout, size_t output) {
  if (dout == kNone)
    internal_error("{}: no gradient arrives for {}", node.name,
                   b.tensor(node.out[output].tensor).name);
  return dout;
}

// Both norms. The sum's gradient flows unchanged to both of its terms; what arrives for the sum
// besides the norm's own part is added in place.
void norm_backward(GraphBuilder& b, const Node& node, OpKind op, const Tensors& dout,
                   Tensors& din) {
  const bool residual = node.attrs.residual;
  const size_t y = residual ? 1 : 0, weight = residual ? 2 : 1;
  const TensorId normed = residual ? node.out[0].tensor : node.in[0].tensor;
  const TensorId arrived = residual ? dout[0] : din[0];
  Node grad = gradient_node(
      node, op, ".backward",
      {normed, node.out[y + 1].tensor, node.in[weight].tensor, incoming(b, node, dout[y], y)});
  grad.attrs.residual = arrived != kNone;
  if (arrived != kNone) {
    grad.alias.push_back({0, static_cast<int32_t>(grad.in.size())});
    grad.in.push_back({arrived});
  }
  const TensorId dx = gradient_of(b, normed);
  grad.out.push_back({dx});
  for (size_t i = weight; i < node.in.size(); ++i)
    grad.out.push_back(accumulating(b.accumulator(node.in[i].tensor)));
  b.emit(std::move(grad));
  din[0] = dx;
  if (residual) din[1] = dx;
}

}  // namespace

void embedding_backward(GraphBuilder& b, const Node& node, const Tensors& dout, Tensors&) {
  const TensorId order = b.graph.find("token_order");
  if (order == kNone) internal_error("{}: the graph has no input token_order", node.name);
  Node grad = gradient_node(node, OpKind::embedding_grad, ".backward",
                            {incoming(b, node, dout[0], 0), order, node.in[1].tensor});
  grad.out.push_back(accumulating(b.accumulator(node.in[0].tensor)));
  if (node.attrs.bias) grad.out.push_back(accumulating(b.accumulator(node.in[2].tensor)));
  b.emit(std::move(grad));
}

void rmsnorm_backward(GraphBuilder& b, const Node& node, const Tensors& dout, Tensors& din) {
  norm_backward(b, node, OpKind::rmsnorm_grad, dout, din);
}

void layernorm_backward(GraphBuilder& b, const Node& node, const Tensors& dout, Tensors& din) {
  norm_backward(b, node, OpKind::layernorm_grad, dout, din);
}

void matmul_backward(GraphBuilder& b, const Node& node, const Tensors& dout, Tensors& din) {
  const TensorId dy = incoming(b, node, dout[0], 0);
  const TensorId a = node.in[0].tensor, w = node.in[1].tensor;
  Node weight = gradient_node(node, OpKind::matmul_dweight, ".backward_weight", {dy, a});
  weight.out.push_back(accumulating(b.accumulator(w)));
  b.emit(std::move(weight));
  if (node.attrs.bias) {
    Node bias = gradient_node(node, OpKind::bias_grad, ".backward_bias", {dy});
    bias.out.push_back(accumulating(b.accumulator(node.in[2].tensor)));
    b.emit(std::move(bias));
  }
  Node input = gradient_node(node, OpKind::matmul_dinput, ".backward_input", {dy, w});
  din[0] = gradient_of(b, a);
  input.out.push_back({din[0]});
  b.emit(std::move(input));
}

void rope_backward(GraphBuilder& b, const Node& node, const Tensors& dout, Tensors& din) {
  Node grad = gradient_node(node, OpKind::rope_grad, ".backward", {incoming(b, node, dout[0], 0)});
  din[0] = gradient_of(b, node.in[0].tensor);
  grad.out.push_back({din[0]});
  grad.alias.push_back({0, 0});
  if (node.attrs.qk_norm) {
    for (const Operand& in : node.in) grad.in.push_back(in);
    for (size_t i = 1; i < 3; ++i)
      grad.out.push_back(accumulating(b.accumulator(node.in[i].tensor)));
  }
  b.emit(std::move(grad));
}

void attention_backward(GraphBuilder& b, const Node& node, const Tensors& dout, Tensors& din) {
  Node grad = gradient_node(
      node, OpKind::attention_grad, ".backward",
      {node.in[0].tensor, node.out[0].tensor, node.out[1].tensor, incoming(b, node, dout[0], 0)});
  din[0] = gradient_of(b, node.in[0].tensor);
  grad.out.push_back({din[0]});
  b.emit(std::move(grad));
}

void gelu_backward(GraphBuilder& b, const Node& node, const Tensors& dout, Tensors& din) {
  Node grad = gradient_node(node, OpKind::gelu_grad, ".backward",
                            {node.in[0].tensor, incoming(b, node, dout[0], 0)});
  din[0] = gradient_of(b, node.in[0].tensor);
  grad.out.push_back({din[0]});
  grad.alias.push_back({0, 1});
  b.emit(std::move(grad));
}

void swiglu_backward(GraphBuilder& b, const Node& node, const Tensors& dout, Tensors& din) {
  Node grad = gradient_node(node, OpKind::swiglu_grad, ".backward",
                            {node.in[0].tensor, incoming(b, node, dout[0], 0)});
  din[0] = gradient_of(b, node.in[0].tensor);
  grad.out.push_back({din[0]});
  b.emit(std::move(grad));
}

void head_loss_backward(GraphBuilder& b, const Node& node, const Tensors&, Tensors& din) {
  const TensorId x = node.in[0].tensor, w = node.in[1].tensor;
  Node grad = gradient_node(node, OpKind::head_loss_grad, ".backward", {x, w, node.in[2].tensor});
  din[0] = gradient_of(b, x);
  grad.out.push_back({din[0]});
  grad.out.push_back(accumulating(b.accumulator(w)));
  grad.out.push_back(node.out[0]);
  b.emit(std::move(grad));
}

}  // namespace spillway
