// The graph of one micro-batch: named tensors and ops in execution order. No devices, no
// addresses. Rewrites (differentiate, shard) add nodes to it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "graph/kernel_abi.h"

namespace spillway {

using TensorId = int32_t;
using NodeId = int32_t;
constexpr int32_t kNone = -1;

enum class Role : uint8_t {
  input,       // filled by the loader: tokens, targets, token_order
  param,       // compute copy of a parameter (f32, or bf16 with an f32 master)
  master,      // f32 master of a bf16 parameter; absent where the parameter itself is f32
  moment,      // AdamW's m and v, f32
  grad,        // f32 gradient accumulator, alive for a step
  activation,  // forward values and their gradients, alive within a micro-batch
  scalar,      // step scalars, losses, norm partials
  kv_cache,
  staging,       // received pieces of gradients
  node_staging,  // sums over the ranks of a node: this node's, and what other nodes sent
  // Without a home: they exist only in slots of rings, while their layer runs.
  gathered,      // a parameter put together from every rank's shard
  partial_grad,  // f32 gradient accumulator of one reduction, summed over ranks into a grad
};

enum class Pass : uint8_t { forward, backward, reduce, update };

// Layers: 0 is the embedding, 1…L the blocks, L + 1 the head. Block k of the config's "@k" is layer
// k + 1.
struct Tensor {
  std::string name;   // "blk.3.qkv": key of random numbers, checkpoints and messages
  std::string place;  // "qkv": the name "place" uses; tensors of one place and layer move together
  Dtype dtype = Dtype::f32;
  Dims dims;
  Role role = Role::activation;
  int32_t layer = 0;
  bool anchor = false;   // a block's input: may be kept or streamed, never recomputed
  bool carried = false;  // read by the next step's program
  int64_t bytes() const { return dims.count() * size_of(dtype); }
};

// A whole tensor, or `count` elements of it from `begin` on.
struct Operand {
  TensorId tensor = kNone;
  int64_t begin = 0, count = -1;  // -1: the whole tensor
  bool accumulate = false;        // output only: adds to what is there except at the group's first
};

// Sends or receives of an exchange: `operand` indexes `in` (send) or `out` (receive). No rank talks
// to itself. With `count` peers: peer, peer + stride, …; the operand is cut into as many equal
// parts, one for each of them in that order, or all of it is sent to every one (`same`).
struct Transfer {
  int32_t peer = 0;
  bool send = false;
  int32_t operand = 0;
  int32_t count = 1, stride = 1;
  bool same = false;
};

enum class NodeKind : uint8_t {
  op,
  exchange,
  copy,  // in[0] → out[0], as many bytes: in updates on the lane of compute, else of communication
};

// The same tensor range in `in` and `out` is an update in place. `alias` lists other pairs
// (out index, in index) where the output takes over the bytes of an input that dies there.
struct Node {
  std::string name;  // "blk.3.qkv" + pass, for messages, traces and NVTX
  NodeKind kind = NodeKind::op;
  OpKind op = OpKind::add;
  Attrs attrs;
  std::vector<Operand> in, out;
  std::vector<std::pair<int32_t, int32_t>> alias;
  std::vector<Transfer> transfers;  // exchange only
  int32_t layer = 0;
  Pass pass = Pass::forward;
  int32_t unit = kNone;  // reduce and update passes: parameters that travel and update together
  bool on_host = false;  // an update by the host's processors, in the host's memory
};

// How a parameter starts.
enum class Init : uint8_t { normal, ones, zeros };

struct Range {
  int64_t begin = 0, count = 0;
};

struct Param {
  TensorId param = kNone, master = kNone, moment1 = kNone, moment2 = kNone;
  TensorId shard = kNone;  // this rank's part, where `param` is gathered before use
  // Ranges of the parameter whose state this rank holds, one after the other in `shard`, master and
  // moments; empty: all of it, on every rank.
  std::vector<Range> own;
  std::vector<TensorId> grads;  // one accumulator a use, in order of use; added into grads[0]
  bool decay = false;
  Init init = Init::zeros;
  double std = 0;
  Dims live;  // global shape without vocabulary padding: what a checkpoint holds
  TensorId home() const { return shard != kNone ? shard : param; }      // what outlives a layer
  TensorId state() const { return master != kNone ? master : home(); }  // the f32 truth
};

struct Graph {
  std::vector<Tensor> tensors;
  std::vector<Node> nodes;
  std::vector<Param> params;
  int32_t layers = 0;  // L

  TensorId add(Tensor t) {
    tensors.push_back(std::move(t));
    return static_cast<TensorId>(tensors.size()) - 1;
  }
  TensorId find(const std::string& name) const {
    for (size_t i = 0; i < tensors.size(); ++i)
      if (tensors[i].name == name) return static_cast<TensorId>(i);
    return kNone;
  }
};

// Blocks of a global tensor for norms and shards (a function of its shape alone): at least 64
// blocks where it allows, at most 65,536 elements each.
int64_t block_elements(int64_t count);

// Elements of a tensor of `total` elements when `ranks` share it: ceil(blocks / ranks) blocks each,
// the last ranks fewer or none.
Range shard_of(int64_t total, int rank, int ranks);
int64_t shard_capacity(int64_t total, int ranks);  // elements of the largest shard

}  // namespace spillway
