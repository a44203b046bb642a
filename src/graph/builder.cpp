#include "graph/builder.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace spillway {
namespace {

constexpr const char* kForwardSuffix = ".forward";

// "attn_norm.stats" moves with "attn_norm".
std::string place_of(const std::string& name) { return name.substr(0, name.find('.')); }

// A node is called after its main output: the last one that is not a companion of another.
const std::string& main_name(const std::vector<std::string>& names) {
  for (auto it = names.rbegin(); it != names.rend(); ++it)
    if (it->find('.') == std::string::npos) return *it;
  return names.front();
}

bool is_norm(OpKind op) { return op == OpKind::rmsnorm || op == OpKind::layernorm; }

bool reads(const Node& node, TensorId tensor) {
  return std::any_of(node.in.begin(), node.in.end(),
                     [&](const Operand& operand) { return operand.tensor == tensor; });
}

}  // namespace

TensorId GraphBuilder::input(const std::string& name, Dtype dtype, Dims dims) {
  Tensor t;
  t.name = t.place = name;
  t.dtype = dtype;
  t.dims = dims;
  t.role = Role::input;
  t.layer = layer;
  return graph.add(std::move(t));
}

TensorId GraphBuilder::param(const std::string& name, Dims dims, Dims live, bool matrix, Init init,
                             double std) {
  Tensor t;
  t.name = name;
  t.place = "parameters";
  t.dtype = matrix ? compute : Dtype::f32;
  t.dims = dims;
  t.role = Role::param;
  t.layer = layer;
  Param p;
  p.param = graph.add(std::move(t));
  p.decay = matrix;
  p.init = init;
  p.std = std;
  p.live = live;
  graph.params.push_back(p);
  return p.param;
}

std::vector<TensorId> GraphBuilder::op(OpKind kind, const Attrs& attrs,
                                       const std::vector<TensorId>& in, const std::string& prefix,
                                       const std::vector<std::string>& names, bool alias) {
  const OpDef& def = op_def(kind);
  if (def.infer == nullptr) internal_error("op {} cannot stand in a forward graph", def.name);
  std::vector<TensorType> types;
  Node node;
  for (TensorId id : in) {
    types.push_back({graph.tensors[id].dtype, graph.tensors[id].dims});
    node.in.push_back({id});
  }
  const std::vector<TensorType> outputs = def.infer(attrs, types);
  if (outputs.size() != names.size())
    internal_error("op {} has {} outputs, {} are named", def.name, outputs.size(), names.size());
  std::vector<TensorId> result;
  for (size_t i = 0; i < names.size(); ++i) {
    Tensor t;
    t.name = prefix + names[i];
    t.place = place_of(names[i]);
    t.dtype = outputs[i].dtype;
    t.dims = outputs[i].dims;
    t.role = Role::activation;
    t.layer = layer;
    result.push_back(graph.add(std::move(t)));
    node.out.push_back({result.back()});
  }
  if (alias) node.alias.push_back({0, 0});
  node.name = prefix + main_name(names) + kForwardSuffix;
  node.op = kind;
  node.attrs = attrs;
  node.layer = layer;
  node.pass = Pass::forward;
  graph.nodes.push_back(std::move(node));
  return result;
}

TensorId GraphBuilder::temp(const std::string& name, Dtype dtype, Dims dims) {
  Tensor t;
  t.name = name;
  t.place = "gradient_activations";
  t.dtype = dtype;
  t.dims = dims;
  t.role = Role::activation;
  t.layer = layer;
  return graph.add(std::move(t));
}

TensorId GraphBuilder::accumulator(TensorId param) {
  for (Param& p : graph.params) {
    if (p.param != param) continue;
    Tensor t;
    const size_t use = p.grads.size() + 1;
    t.name = graph.tensors[param].name + ".grad" + (use > 1 ? std::to_string(use) : "");
    t.place = "gradients";
    t.dtype = Dtype::f32;
    t.dims = graph.tensors[param].dims;
    t.role = Role::grad;
    t.layer = graph.tensors[param].layer;
    p.grads.push_back(graph.add(std::move(t)));
    return p.grads.back();
  }
  internal_error("tensor {} is not a parameter", graph.tensors[param].name);
}

Node& GraphBuilder::emit(Node node) {
  node.layer = layer;
  node.pass = Pass::backward;
  graph.nodes.push_back(std::move(node));
  return graph.nodes.back();
}

Graph differentiate(const Graph& forward) {
  GraphBuilder b;
  b.graph = forward;
  std::erase_if(b.graph.nodes, [](const Node& node) { return node.op == OpKind::head_loss; });
  if (b.graph.nodes.size() + 1 != forward.nodes.size())
    internal_error("a graph to differentiate has one loss, this one has {}",
                   forward.nodes.size() - b.graph.nodes.size());

  std::vector<TensorId> grad(forward.tensors.size(), kNone);
  for (auto node = forward.nodes.rbegin(); node != forward.nodes.rend(); ++node) {
    std::vector<TensorId> dout, din;
    for (const Operand& out : node->out) dout.push_back(grad[out.tensor]);
    for (const Operand& in : node->in) din.push_back(grad[in.tensor]);
    const bool loss = node->op == OpKind::head_loss;
    if (!loss && std::all_of(dout.begin(), dout.end(), [](TensorId d) { return d == kNone; }))
      continue;
    const OpDef& def = op_def(node->op);
    if (def.backward == nullptr)
      internal_error("{}: op {} has no backward pass", node->name, def.name);

    // A rule finds in din what has already arrived for an input, and must read it into what it
    // leaves there: a gradient has one producer.
    const std::vector<TensorId> arrived = din;
    const size_t first_emitted = b.graph.nodes.size();
    b.layer = node->layer;
    def.backward(b, *node, dout, din);
    for (size_t i = 0; i < din.size(); ++i) {
      const TensorId target = node->in[i].tensor;
      if (din[i] == arrived[i]) continue;
      const bool taken_over =
          arrived[i] == kNone ||
          std::any_of(b.graph.nodes.begin() + static_cast<int64_t>(first_emitted),
                      b.graph.nodes.end(),
                      [&](const Node& emitted) { return reads(emitted, arrived[i]); });
      if (!taken_over || grad[target] != arrived[i])
        internal_error("{}: tensor {} would get two gradients", node->name,
                       forward.tensors[target].name);
      grad[target] = din[i];
    }
  }
  return std::move(b.graph);
}

Node recompute_node(const Node& node, const std::function<bool(TensorId)>& available) {
  Node again = node;
  const size_t suffix = again.name.rfind(kForwardSuffix);
  if (suffix != std::string::npos) again.name.resize(suffix);
  again.pass = Pass::backward;
  const auto exists = [&](const Operand& operand) {
    return operand.tensor != kNone && available(operand.tensor);
  };
  if (is_norm(node.op) && node.attrs.residual && exists(node.out[0])) {
    again.attrs.residual = false;
    again.in.assign(node.in.begin() + 1, node.in.end());
    again.in[0] = node.out[0];
    again.out.erase(again.out.begin());
  }
  return again;
}

}  // namespace spillway
